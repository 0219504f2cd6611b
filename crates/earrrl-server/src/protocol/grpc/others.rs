//! Forwards calls for health and reflection to tonic's services.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use h2::RecvStream;
use h2::server::SendResponse;
use hyper::body::Bytes;
use tonic::Status;
use tower::ServiceExt as _;

use super::message::OVERLOADED;
use super::reply::{count, refuse};
use super::services::Services;
use crate::protocol::http2::exchange;
use crate::protocol::http2::held::{self, HeldBytes, HeldShare};
use crate::server::Server;

/// Answers a call in a task, which ends with the call or when the client cancels it.
pub(super) fn answer(
    server: &Arc<Server>,
    services: &Services,
    held: &Arc<HeldBytes>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    let mut share = HeldShare::new(held);
    let share_of_body = HeldShare::new(held);
    if !share.set(held::head(request.headers())) {
        server.service.metrics.shed.increment();
        return refuse(server, Status::unavailable(OVERLOADED), respond);
    }
    let watch = match is_watch(&request).then(|| services.begin_watch(held)) {
        None => None,
        Some(Some(watch)) => Some(watch),
        Some(None) => {
            let why = "too many Watch calls at once";
            return refuse(server, Status::resource_exhausted(why), respond);
        }
    };
    let server = Arc::clone(server);
    let services = services.others();
    let of_body = Arc::clone(held);
    tokio::spawn(async move {
        let _watch = watch;
        let patience = exchange::patience(&server);
        let request = exchange::receive(request, &of_body, Some(share_of_body), patience);
        let answered = counted(&server, services, request);
        exchange::send_answer(&server, answered, respond, share).await;
    });
}

/// Returns true for a call to `Watch`, which stays open and reports each change of the server's
/// health.
fn is_watch(request: &Request<RecvStream>) -> bool {
    request.uri().path() == "/grpc.health.v1.Health/Watch"
}

/// Returns the response of tonic's services, and counts it in the metrics.
async fn counted(
    server: &Server,
    services: Router,
    request: Request<Body>,
) -> Result<Response<Body>, Infallible> {
    let answer = services.oneshot(request).await?;
    count(server, Some(answer.headers()));
    Ok(answer)
}
