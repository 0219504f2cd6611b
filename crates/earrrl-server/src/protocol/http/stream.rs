//! Streams of events, which stay open until the client leaves, its token is revoked or the server stops.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::{Stream, StreamExt as _};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use super::request::authorize;
use crate::config::access::{Access, Scope};
use crate::protocol::response::problem::Problem;
use crate::server::Server;

/// The time between two steps of a stream.
const INTERVAL: Duration = Duration::from_secs(1);

/// The connection of a stream: the client's token, and its place among the streams that may be open.
pub(super) struct Subscription {
    /// The server.
    pub(super) server: Arc<Server>,
    headers: HeaderMap,
    _place: OwnedSemaphorePermit,
}

impl Subscription {
    /// Takes a place for a stream of the client that sent `headers`.
    pub(super) fn open(server: Arc<Server>, headers: HeaderMap) -> Result<Self, Problem> {
        let place = Arc::clone(&server.watchers)
            .try_acquire_owned()
            .map_err(|_| {
                Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "too many streams are open already",
                )
            })?;
        Ok(Self {
            server,
            headers,
            _place: place,
        })
    }

    /// Waits for the next step; returns `None` if the stream is to end.
    pub(super) async fn step(&self) -> Option<Access> {
        sleep(INTERVAL).await;
        if self.server.is_stopping() || self.server.connections.are_stopping() {
            return None;
        }
        authorize(&self.server, &self.headers, Scope::Top).ok()
    }
}

/// Returns the response whose body is a stream.
pub(super) fn respond(
    kind: &'static str,
    stream: impl Stream<Item = Bytes> + Send + 'static,
) -> Response {
    let mut response = Body::from_stream(stream.map(Ok::<_, Infallible>)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
