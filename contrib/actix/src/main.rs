//! An actix-web service with a limit for each client. After `cargo run`, the sixth of these requests gets a 429:
//! `for i in $(seq 6); do curl -si http://127.0.0.1:8000/ | head -1; done`

use std::net::IpAddr;

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::RETRY_AFTER;
use actix_web::middleware::{Next, from_fn};
use actix_web::web::Data;
use actix_web::{App, Error, HttpResponse, HttpServer, web};
use earrrl::Limiter;
use earrrl_tower::ClientAddress;

/// The limit and the way to find a client's address, which all workers share.
struct Limit {
    limiter: Limiter<IpAddr>,
    address: ClientAddress,
}

/// Answers a client over its limit with 429, and passes on the requests of all others.
async fn limited(
    limit: Data<Limit>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let peer = request.peer_addr().map(|peer| peer.ip());
    // All lines of the header are one list: a proxy may add a line of its own after the client's.
    let lines = request.headers().get_all(limit.address.header());
    let lines: Vec<_> = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
    // A service on a Unix socket has no peer; all of its clients are one then.
    let client = limit.address.resolve_value(peer, &lines.join(",")).unwrap_or(IpAddr::from([0; 4]));
    let denied = match limit.limiter.check(&client).ok() {
        Ok(_) => return Ok(next.call(request).await?.map_into_boxed_body()),
        Err(denied) => denied,
    };
    let mut response = HttpResponse::TooManyRequests();
    if let Some(wait) = denied.decision().retry_after.duration() {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        response.insert_header((RETRY_AFTER, seconds));
    }
    Ok(request.into_response(response.finish()))
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::builder("gcra 1/s burst=5".parse::<earrrl::Rule>()?).build()?;
    // Behind a proxy: `ClientAddress::default().trust("10.0.0.0/8".parse()?)`.
    let limit = Data::new(Limit { limiter, address: ClientAddress::default() });
    let app = move || {
        let hello = web::get().to(|| async { "hello" });
        App::new().app_data(limit.clone()).wrap(from_fn(limited)).route("/", hello)
    };
    Ok(HttpServer::new(app).bind("127.0.0.1:8000")?.run().await?)
}

#[cfg(test)]
mod tests {
    use actix_web::test::{TestRequest, call_service, init_service};

    use super::*;

    #[actix_web::test]
    async fn the_sixth_request_of_a_client_is_denied() {
        let rule: earrrl::Rule = "gcra 1/h burst=5".parse().unwrap();
        let limiter = Limiter::builder(rule).build().unwrap();
        let limit = Data::new(Limit { limiter, address: ClientAddress::default() });
        let hello = web::get().to(|| async { "hello" });
        let app = App::new().app_data(limit).wrap(from_fn(limited)).route("/", hello);
        let app = init_service(app).await;
        for (client, status) in [("192.0.2.7:1", 200); 5]
            .into_iter()
            .chain([("192.0.2.7:2", 429), ("192.0.2.8:1", 200)])
        {
            let request = TestRequest::get().uri("/").peer_addr(client.parse().unwrap());
            let response = call_service(&app, request.to_request()).await;
            assert_eq!(response.status(), status, "{client}");
            assert_eq!(response.headers().contains_key(RETRY_AFTER), status == 429);
        }
    }

    /// The proxy adds the line with the client's address after the lines that the client sent.
    #[actix_web::test]
    async fn a_client_cannot_invent_addresses_behind_a_proxy() {
        let rule: earrrl::Rule = "gcra 1/h burst=1".parse().unwrap();
        let limiter = Limiter::builder(rule).build().unwrap();
        let address = ClientAddress::default().trust("10.0.0.0/8".parse().unwrap());
        let hello = web::get().to(|| async { "hello" });
        let app = App::new().app_data(Data::new(Limit { limiter, address }));
        let app = init_service(app.wrap(from_fn(limited)).route("/", hello)).await;
        let invented = [&b"198.51.100.1"[..], b"198.51.100.2", b"\xff"];
        for (invented, status) in invented.into_iter().zip([200, 429, 429]) {
            let request = TestRequest::get().uri("/").peer_addr("10.0.0.1:1".parse().unwrap());
            let request = request
                .append_header(("x-forwarded-for", invented))
                .append_header(("x-forwarded-for", "192.0.2.7"));
            assert_eq!(call_service(&app, request.to_request()).await.status(), status, "{invented:?}");
        }
    }
}
