//! The checks that routes make before they answer: the token must grant the required access, and
//! the body must be JSON of bounded length.

use std::io;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes};
use serde::Deserialize;

use super::body::{self, JsonObject};
use crate::config::access::{Access, Scope};
use crate::protocol::bearer::authorize;
use crate::protocol::response::{GONE, Problem};
use crate::server::Server;

pub(super) type ServerState = State<Arc<Server>>;

/// Returns the body of a request whose token permits the operation, and the access that the token
/// grants. A body that is announced as too long is refused before any of it is read. The request must have the content type of JSON,
/// which a web page cannot send to another site without that site's consent (CORS).
pub(super) async fn read(
    server: &Server,
    request: Request,
    needed: Scope,
) -> Result<(Access, Bytes), Problem> {
    let access = authorize(server, request.headers(), needed)?;
    let kind = request
        .headers()
        .get(header::CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    if !essence
        .trim_ascii()
        .eq_ignore_ascii_case(b"application/json")
    {
        let detail = "expected Content-Type: application/json";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let most = server.config.max_body;
    let too_long = |detail| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
    let announced = request.body().size_hint().lower();
    if announced > most as u64 {
        return Err(too_long(format!("{announced} bytes; at most {most}")));
    }
    let body = Limited::new(request.into_body(), most).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => too_long(format!("more than {most} bytes")),
        false => broken(server, &*error),
    });
    Ok((access, body?.to_bytes()))
}

/// Returns the error for a body that ended early: its chunks are malformed, or the client has
/// disconnected.
fn broken(server: &Server, error: &(dyn std::error::Error + 'static)) -> Problem {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut kinds = causes.filter_map(|error| Some(error.downcast_ref::<io::Error>()?.kind()));
    let malformed = [io::ErrorKind::InvalidInput, io::ErrorKind::InvalidData];
    if kinds.any(|kind| malformed.contains(&kind)) {
        server.service.metrics.malformed.increment();
        return Problem::new(StatusCode::BAD_REQUEST, "malformed chunks");
    }
    let gone = StatusCode::from_u16(GONE).unwrap_or(StatusCode::BAD_REQUEST);
    Problem::new(gone, "no whole body")
}

/// Parses a request's body as a JSON object.
pub(super) fn parse<'a, T: Deserialize<'a>>(server: &Server, body: &'a [u8]) -> Result<T, Problem> {
    let parsed = serde_json::from_slice::<JsonObject<T>>(body);
    parsed.map(|object| object.0).map_err(|error| {
        server.service.metrics.malformed.increment();
        Problem::new(
            StatusCode::BAD_REQUEST,
            format!("JSON: {}", body::shown(&error)),
        )
    })
}
