//! A middleware for actix-web, to copy into a service. It asks a layer of `earrrl-tower`, so that keys, costs, several
//! rules, headers and responses are those of `docs/middleware.md`.

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::web::{Bytes, Data};
use actix_web::{Error, HttpResponse, rt};
use earrrl::MemoryEngine;
use earrrl_tower::{Judged, PeerAddress, RateLimitLayer};

/// Answers clients over their limit with 429, and adds the `RateLimit` headers to the responses of all others.
pub async fn rate_limit(
    layer: Data<RateLimitLayer<MemoryEngine>>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let mut parts = parts(&request);
    let mut passed = match layer.judge(&parts) {
        Judged::Pass(passed) => passed,
        Judged::Refuse(response) => return Ok(request.into_response(refusal(response))),
        treatment => {
            return Err(actix_web::error::ErrorInternalServerError(format!(
                "{treatment:?}"
            )));
        }
    };
    rt::time::sleep(passed.delay()).await;
    passed.enter(&mut parts.extensions);
    let mut response = next.call(request).await?.map_into_boxed_body();
    let mut head = http::Response::new(()).into_parts().0;
    head.status = http::StatusCode::from_u16(response.status().as_u16()).unwrap_or_default();
    passed.leave(&mut head);
    for (name, value) in headers(&head.headers) {
        response.headers_mut().append(name, value);
    }
    Ok(response)
}

/// Returns the request's head in the types of `http` 1, since those of actix-web are older.
fn parts(request: &ServiceRequest) -> http::request::Parts {
    let mut parts = http::Request::new(()).into_parts().0;
    parts.method = request.method().as_str().parse().unwrap_or_default();
    parts.uri = request.uri().to_string().parse().unwrap_or_default();
    for (name, value) in request.headers() {
        if let (Ok(name), Ok(value)) = (
            name.as_str().parse::<http::HeaderName>(),
            value.as_bytes().try_into(),
        ) {
            parts.headers.append(name, value);
        }
    }
    if let Some(peer) = request.peer_addr() {
        parts.extensions.insert(PeerAddress(peer.ip()));
    }
    parts
}

fn refusal(response: http::Response<Bytes>) -> HttpResponse {
    let status = StatusCode::from_u16(response.status().as_u16());
    let mut refusal = HttpResponse::build(status.unwrap_or(StatusCode::TOO_MANY_REQUESTS));
    headers(response.headers()).for_each(|header| {
        refusal.append_header(header);
    });
    refusal.body(response.into_body())
}

fn headers(headers: &http::HeaderMap) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    headers.iter().filter_map(|(name, value)| {
        Some((
            name.as_str().parse().ok()?,
            HeaderValue::from_bytes(value.as_bytes()).ok()?,
        ))
    })
}
