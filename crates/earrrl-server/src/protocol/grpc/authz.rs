//! Envoy's `ext_authz` over gRPC: the method `envoy.service.auth.v3.Authorization/Check`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use earrrl::{Outcome, Wait};
use h2::RecvStream;
use tonic::{Code, Status};

use super::call;
use super::message::Reply;
use super::message::frame;
use crate::protobuf::authorization::{
    AddressKind, CheckRequest, CheckResponse, DeniedHttpResponse, HeaderAppendAction,
    HeaderValueOption, HttpRequest, HttpResponse, HttpStatus, OkHttpResponse, Peer,
};
use crate::protobuf::value::Kind;
use crate::protobuf::{HeaderValue as EnvoyHeader, RpcStatus, Struct, Value};
use crate::protocol::authz::{Lines, NO_MEMORY, ProxiedRequest, decide, refuse};
use crate::protocol::http2::held::HeldBytes;
use crate::protocol::response::Verdict;
use crate::server::Server;
use crate::service;
use crate::stream::OF_UNIX;

/// The header that reports the decision's action to the application behind Envoy. All other headers
/// are added to the client's response.
const ACTION: &str = "x-ratelimit-action";

/// Answers a call to `Check`.
pub(super) async fn answer(
    server: &Server,
    all: &Arc<HeldBytes>,
    request: Request<RecvStream>,
) -> Reply {
    let started = Instant::now();
    let answered = check(server, all, request, started)
        .await
        .map(|answer| frame(&answer));
    if let Err(status) = &answered {
        server.service.refused_question(status.message());
    }
    server
        .service
        .metrics
        .http_request
        .record(started.elapsed());
    answered
}

async fn check(
    server: &Server,
    all: &Arc<HeldBytes>,
    request: Request<RecvStream>,
    started: Instant,
) -> Result<CheckResponse, Status> {
    let timeout = call::timeout(request.headers()).map_err(Status::invalid_argument)?;
    let deadline = timeout.map(|timeout| started + timeout);
    let request = call::message(server, all, request).await;
    let is_of_size = |code| matches!(code, Code::Unavailable | Code::ResourceExhausted);
    if request
        .as_ref()
        .is_err_and(|status| is_of_size(status.code()))
    {
        // The message is too large, or memory is short. The call gets a denial, since Envoy passes a
        // client's request on after an error.
        let verdict = refuse(server.service.rules().deny_status, NO_MEMORY);
        return Ok(response(
            verdict,
            metadata(&service::answer::Answer::default(), Outcome::Deny),
        ));
    }
    let request: CheckRequest = request?;
    let attributes = request.attributes.unwrap_or_default();
    let peer = attributes.source.as_ref().and_then(address);
    let http = attributes.request.and_then(|request| request.http);
    let http = http.ok_or_else(|| Status::invalid_argument("attributes.request.http: expected"))?;
    let lines = |name: &str| lines(&http, name);
    let deciding = decide(
        server,
        asked(&http, peer),
        lines,
        deadline,
        |verdict, answer| {
            let outcome = match &answer.decision {
                _ if answer.is_denied_by_error() => Outcome::Deny,
                Some(decision) => decision.outcome,
                None if verdict.status() == StatusCode::OK => Outcome::Allow,
                None => Outcome::Deny,
            };
            response(verdict, metadata(answer, outcome))
        },
    );
    Ok(deciding.await)
}

fn asked<'a>(http: &'a HttpRequest, peer: Option<IpAddr>) -> ProxiedRequest<'a> {
    let given = |bytes: &'a Vec<u8>| Some(bytes.into()).filter(|_| !bytes.is_empty());
    ProxiedRequest {
        method: (&http.method).into(),
        target: (&http.path).into(),
        host: given(&http.host),
        proto: given(&http.scheme),
        peer,
    }
}

/// Returns the address of the client that is connected to Envoy.
fn address(source: &Peer) -> Option<IpAddr> {
    match source.address.as_ref()?.address.as_ref()? {
        AddressKind::Socket(address) => address.address.parse().ok(),
        AddressKind::Pipe(_) => Some(OF_UNIX),
    }
}

/// Returns the values of a header of the client's request. Envoy sends header names in lower case.
/// It joins repeated headers, or lists each of them with the setting `encode_raw_headers`.
fn lines<'a>(http: &'a HttpRequest, name: &str) -> Lines<'a> {
    if let Some(value) = http.headers.get(name) {
        return [value.into()].into_iter().collect();
    }
    let raw = http.header_map.iter().flat_map(|map| &map.headers);
    let lines = raw
        .filter(|header| header.key == name)
        .map(|header| match &*header.raw_value {
            [] => header.value.as_bytes().into(),
            raw => raw.into(),
        });
    lines.collect()
}

fn response(verdict: Verdict, metadata: Struct) -> CheckResponse {
    let (parts, body) = verdict.into_parts();
    let allowed = parts.status == StatusCode::OK;
    let (code, http) = if allowed {
        (Code::Ok, HttpResponse::Ok(pass(&parts.headers)))
    } else {
        let denied = DeniedHttpResponse {
            status: Some(HttpStatus {
                code: parts.status.as_u16().into(),
            }),
            headers: parts
                .headers
                .iter()
                .map(|(name, value)| option(name, value))
                .collect(),
            body: String::from_utf8(body).unwrap_or_default(),
        };
        (code(parts.status), HttpResponse::Denied(denied))
    };
    CheckResponse {
        status: Some(RpcStatus {
            code: code.into(),
            ..RpcStatus::default()
        }),
        dynamic_metadata: Some(metadata),
        http_response: Some(http),
    }
}

fn pass(headers: &HeaderMap) -> OkHttpResponse {
    let (to_application, to_client) = headers
        .iter()
        .partition::<Vec<_>, _>(|(name, _)| *name == ACTION);
    let options = |headers: Vec<(&HeaderName, &HeaderValue)>| {
        headers
            .into_iter()
            .map(|(name, value)| option(name, value))
            .collect()
    };
    OkHttpResponse {
        headers: options(to_application),
        response_headers_to_add: options(to_client),
    }
}

/// Returns a header that replaces any header of the same name in the message that Envoy passes on.
fn option(name: &HeaderName, value: &HeaderValue) -> HeaderValueOption {
    let header = EnvoyHeader {
        key: name.as_str().to_owned(),
        value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
        ..EnvoyHeader::default()
    };
    HeaderValueOption {
        header: Some(header),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
    }
}

fn code(status: StatusCode) -> Code {
    match status {
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        _ => Code::PermissionDenied,
    }
}

/// Returns the decision as dynamic metadata, which Envoy's later filters and access logs can read.
/// Durations are in seconds; `retry_after` is absent if the request can never be allowed.
fn metadata(answer: &service::answer::Answer<'_>, outcome: Outcome) -> Struct {
    let number = |number: f64| Some(Kind::NumberValue(number));
    let mut fields = vec![("action", Some(Kind::StringValue(outcome.name().to_owned())))];
    if let (Some(decision), Some(charged)) = (&answer.decision, answer.deciding()) {
        let wait = match decision.retry_after {
            Wait::For(wait) => number(wait.as_secs_f64()),
            Wait::Never => None,
        };
        fields.extend([
            ("rule", Some(Kind::StringValue(charged.rule.name.clone()))),
            ("rate", decision.rate.map(Kind::NumberValue)),
            ("limit", number(decision.limit)),
            ("remaining", number(decision.remaining as f64)),
            ("retry_after", wait),
            ("reset_after", number(decision.reset_after.as_secs_f64())),
        ]);
    }
    let field =
        |(name, kind): (&str, Option<Kind>)| Some((name.to_owned(), Value { kind: Some(kind?) }));
    Struct {
        fields: fields.into_iter().filter_map(field).collect(),
    }
}
