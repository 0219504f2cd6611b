//! Serves one gRPC connection. Calls that need not wait are answered at once, and all others in
//! tasks.
//!
//! The services and the paths of their methods are at the end. Calls for health and reflection are passed on to tonic's
//! services.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use earrrl::Mode;
use h2::RecvStream;
use h2::server::SendResponse;
use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::ServiceExt as _;

use super::call::RateLimitCall;
use super::message::{OVERLOADED, Reply, count, refuse, send};
use super::{authz, reserve};
use crate::connections::Connection;
use crate::protocol::http2;
use crate::protocol::http2::held::{EndlessCall, HeldBytes, HeldShare};
use crate::protocol::http2::{exchange, held};
use crate::server::Server;
use crate::stream::Stream;

/// Serves a gRPC connection until it ends.
pub async fn serve(
    stream: Stream,
    connection: Connection,
    server: Arc<Server>,
    services: Services,
) {
    http2::serve(
        stream,
        Arc::new(connection),
        &server,
        |arrived, held, context| {
            answer(&server, &services, held, arrived, context);
        },
    )
    .await;
}

/// Answers one request of a gRPC connection, at once if possible and otherwise in a task.
fn answer(
    server: &Arc<Server>,
    services: &Services,
    held: &Arc<HeldBytes>,
    (request, respond): http2::Arrived,
    context: &mut Context<'_>,
) {
    if !is_grpc(request.headers()) {
        return refuse_type(server, held, request.into_body(), respond);
    }
    let held = Arc::clone(held);
    match kind_of(&request) {
        CallKind::RateLimit(mode) => {
            let call = RateLimitCall::new(server, mode, request);
            answer_rate_limit(server, &held, call, respond, context);
        }
        CallKind::Reserve => wait(server, held, respond, context, |server, held| async move {
            reserve::reserve(&server, &held, request).await
        }),
        CallKind::Commit => wait(server, held, respond, context, |server, held| async move {
            reserve::commit(&server, &held, request).await
        }),
        CallKind::Authorization => {
            wait(server, held, respond, context, |server, held| async move {
                authz::answer(&server, &held, request).await
            })
        }
        CallKind::Other => answer_by_service(server, services, &held, request, respond),
    }
}

/// Answers a call of Envoy's rate limit service, at once unless its message is incomplete or the
/// engine must wait.
fn answer_rate_limit(
    server: &Arc<Server>,
    held: &Arc<HeldBytes>,
    mut call: RateLimitCall,
    respond: SendResponse<Bytes>,
    context: &mut Context<'_>,
) {
    if let Some(answer) = call.at_once(server, context) {
        return send(server, held, answer, respond);
    }
    call.hold(held);
    wait(
        server,
        Arc::clone(held),
        respond,
        context,
        |server, _| async move { call.answer(&server).await },
    );
}

/// Returns true if the content type is `application/grpc`, with or without a format such as
/// `+proto`.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    matches!(
        kind.strip_prefix(b"application/grpc"),
        Some([] | [b'+' | b';', ..])
    )
}

/// Refuses a request whose content type is not that of gRPC, with status 415.
fn refuse_type(
    server: &Server,
    held: &Arc<HeldBytes>,
    body: RecvStream,
    mut respond: SendResponse<Bytes>,
) {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    server
        .service
        .metrics
        .count_status(response.status().as_u16());
    // The sending fails only if the client has disconnected or cancelled the request.
    let _ = respond.send_response(response, true);
    exchange::discard(body, HeldShare::new(held), exchange::patience(server));
}

/// Sends `answer` at once if it is ready. Otherwise starts a task that waits for it, unless the
/// client cancels the call before.
///
/// The future is boxed, since it takes several kilobytes, which the task would copy ten times.
fn wait<F>(
    server: &Arc<Server>,
    held: Arc<HeldBytes>,
    mut respond: SendResponse<Bytes>,
    context: &mut Context<'_>,
    answer: impl FnOnce(Arc<Server>, Arc<HeldBytes>) -> F,
) where
    F: Future<Output = Reply> + Send + 'static,
{
    let server = Arc::clone(server);
    let mut answer = Box::pin(answer(Arc::clone(&server), Arc::clone(&held)));
    if let Poll::Ready(answer) = answer.as_mut().poll(context) {
        return send(&server, &held, answer, respond);
    }
    tokio::spawn(async move {
        let first = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => respond.poll_reset(context).map(|_| None),
        });
        if let Some(answer) = first.await {
            send(&server, &held, answer, respond);
        }
    });
}

/// The names of the services whose health is reported. The empty name, which stands for the whole
/// server, is reported too.
const NAMES: [&str; 3] = [
    "ratelimit",
    "envoy.service.ratelimit.v3.RateLimitService",
    "envoy.service.auth.v3.Authorization",
];
/// The largest number of `Watch` calls (which report changes of the server's health) that may be
/// open at once on one connection, and below that on the whole server. A client needs one call for
/// each service's name.
const WATCHES_A_CONNECTION: usize = 8;
const MAX_WATCHES: usize = 1024;
/// The encoded descriptors of the services for Envoy, which the reflection service returns. The
/// script `scripts/descriptors` generates the file.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");

/// The health and reflection services, and the handle that sets the reported health.
#[derive(Clone, Debug)]
pub struct Services {
    others: Router,
    health: HealthReporter,
    watches: Arc<Semaphore>,
}

/// An open `Watch` call. While this value exists, the call counts towards the limits of its
/// connection and of the server.
#[derive(Debug)]
pub(super) struct Watch {
    _of_connection: EndlessCall,
    _of_server: OwnedSemaphorePermit,
}

/// Creates the health and reflection services. [`Services::announce_start`] then sets the health
/// that is reported for each service to "serving".
pub fn services() -> Services {
    let (health, health_service) = tonic_health::server::health_reporter();
    let mut routes = Routes::new(health_service);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    match (reflection().build_v1(), reflection().build_v1alpha()) {
        (Ok(v1), Ok(v1alpha)) => routes = routes.add_service(v1).add_service(v1alpha),
        (Err(error), _) | (_, Err(error)) => tracing::warn!(%error, "no reflection"),
    }
    let watches = Arc::new(Semaphore::new(MAX_WATCHES));
    Services {
        others: routes.prepare().into_axum_router(),
        health,
        watches,
    }
}

impl Services {
    /// Makes the health service report that the server and each of its services are serving.
    pub async fn announce_start(&self) {
        self.announce(ServingStatus::Serving).await;
    }

    /// Makes the health service report that the server and each of its services have stopped
    /// serving.
    pub async fn announce_stop(&self) {
        self.announce(ServingStatus::NotServing).await;
    }

    async fn announce(&self, status: ServingStatus) {
        for name in NAMES.into_iter().chain([""]) {
            self.health.set_service_status(name, status).await;
        }
    }

    /// Counts a new `Watch` call. Returns `None` if the connection or the server has too many of
    /// them.
    fn begin_watch(&self, held: &Arc<HeldBytes>) -> Option<Watch> {
        Some(Watch {
            _of_connection: held.begin_endless(WATCHES_A_CONNECTION)?,
            _of_server: Arc::clone(&self.watches).try_acquire_owned().ok()?,
        })
    }

    /// Returns a router that leads to the health and reflection services.
    pub(super) fn others(&self) -> Router {
        self.others.clone()
    }
}

/// The kind of call that a request makes.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallKind {
    /// A call for a decision on descriptors, in this mode.
    RateLimit(Mode),
    /// A call to reserve an estimate.
    Reserve,
    /// A call to correct a reservation.
    Commit,
    /// A call to Envoy's `ext_authz`.
    Authorization,
    /// A call to the health or reflection service, or to an unknown path.
    Other,
}

/// Returns the kind of call that a request makes, by its method and path.
fn kind_of<B>(request: &Request<B>) -> CallKind {
    if request.method() != Method::POST {
        return CallKind::Other;
    }
    match request.uri().path() {
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
            CallKind::RateLimit(Mode::Check)
        }
        "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit" => {
            CallKind::RateLimit(Mode::Peek)
        }
        "/kuadrant.service.ratelimit.v1.RateLimitService/Report" => {
            CallKind::RateLimit(Mode::Charge)
        }
        "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve" => CallKind::Reserve,
        "/kuadrant.service.ratelimit.v1.RateLimitService/Commit" => CallKind::Commit,
        "/envoy.service.auth.v3.Authorization/Check" => CallKind::Authorization,
        _ => CallKind::Other,
    }
}

/// Answers a call in a task, which ends with the call or when the client cancels it.
fn answer_by_service(
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
