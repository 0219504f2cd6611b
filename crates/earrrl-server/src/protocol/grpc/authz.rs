//! Envoy's `ext_authz` over gRPC: the method `envoy.service.auth.v3.Authorization/Check`.

use std::net::IpAddr;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use earrrl::Outcome;
use serde_json::{Map, Value};
use tonic::{Code, Status};

use super::call;
use super::call::{Reply, frame};
use crate::protobuf::authorization::{
    AddressKind, CheckRequest, CheckResponse, DeniedHttpResponse, HeaderAppendAction,
    HeaderValueOption, HttpRequest, HttpResponse, HttpStatus, OkHttpResponse, Peer,
};
use crate::protobuf::json::to_struct;
use crate::protobuf::{HeaderValue as EnvoyHeader, RpcStatus, Struct};
use crate::protocol::authz::{Lines, NO_MEMORY, ProxiedRequest, decide, refuse};
use crate::protocol::response::Verdict;
use crate::server::Server;
use crate::service;
use crate::stream::OF_UNIX;

/// The header that reports the decision's action to the application behind Envoy. All other headers
/// are added to the client's response.
const ACTION: &str = "x-ratelimit-action";

/// Answers a call to `Check`.
pub(super) async fn answer(server: &Server, request: Request<Body>) -> Reply {
    let started = Instant::now();
    let answered = check(server, request, started).await;
    let answered = answered.map(|answer| frame(&answer));
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
    mut request: Request<Body>,
    started: Instant,
) -> Result<CheckResponse, Status> {
    let timeout = call::timeout(request.headers()).map_err(Status::invalid_argument)?;
    let deadline = timeout.map(|timeout| started + timeout);
    let message = call::message(server, &mut request).await;
    let is_of_size = |code| matches!(code, Code::Unavailable | Code::ResourceExhausted);
    if message
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
    let message: CheckRequest = message?;
    let attributes = message.attributes.unwrap_or_default();
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
    let mut fields = Map::from_iter([("action".to_owned(), outcome.name().into())]);
    if let (Some(decision), Some(charged)) = (&answer.decision, answer.deciding()) {
        let wait = decision.retry_after.duration();
        let figures = [
            ("rule", charged.rule.name.as_str().into()),
            ("rate", decision.rate.into()),
            ("limit", decision.limit.into()),
            ("remaining", decision.remaining.into()),
            ("retry_after", wait.map(|wait| wait.as_secs_f64()).into()),
            ("reset_after", decision.reset_after.as_secs_f64().into()),
        ];
        let known = figures
            .into_iter()
            .filter(|(_, figure): &(_, Value)| !figure.is_null());
        fields.extend(known.map(|(name, figure)| (name.to_owned(), figure)));
    }
    to_struct(&fields)
}
