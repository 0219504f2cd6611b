//! Serves one gRPC connection. Calls that need not wait are answered at once, and all others in
//! tasks.
//!
//! The services and the paths of their methods are at the end. Calls for health and reflection are passed on to tonic's
//! services.

use std::sync::Arc;
use std::task::Context;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use earrrl::Mode;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tonic::Status;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::ServiceExt as _;

use super::call::{counted, response};
use super::{authz, call};
use crate::connections::Connection;
use crate::protocol::http2;
use crate::protocol::http2::held::{HeldBytes, HeldShare};
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
    let mut share = HeldShare::new(held);
    // If memory is short, the reading of the body breaks off, and the call gets an answer.
    share.set(held::STREAM);
    let patience = exchange::patience(server);
    let request = exchange::receive(request, held, Some(HeldShare::new(held)), patience);
    let answered = respond_to(
        Arc::clone(server),
        services.clone(),
        Arc::clone(held),
        request,
    );
    exchange::answer(Arc::clone(server), answered, respond, share, context);
}

/// Returns the response to a request, and counts it in the metrics.
async fn respond_to(
    server: Arc<Server>,
    services: Services,
    held: Arc<HeldBytes>,
    request: Request<Body>,
) -> Response<Body> {
    if !is_grpc(request.headers()) {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        server.service.metrics.count_status(status.as_u16());
        return status.into_response();
    }
    let path = match *request.method() {
        Method::POST => request.uri().path(),
        _ => "",
    };
    let reply = match path {
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
            call::rate_limit(&server, Mode::Check, request).await
        }
        "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit" => {
            call::rate_limit(&server, Mode::Peek, request).await
        }
        "/kuadrant.service.ratelimit.v1.RateLimitService/Report" => {
            call::rate_limit(&server, Mode::Charge, request).await
        }
        "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve" => {
            call::reserve(&server, request).await
        }
        "/kuadrant.service.ratelimit.v1.RateLimitService/Commit" => {
            call::commit(&server, request).await
        }
        "/envoy.service.auth.v3.Authorization/Check" => authz::answer(&server, request).await,
        _ => return counted(&server, of_service(&services, &held, request).await),
    };
    counted(&server, response(reply))
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

/// The names of the services whose health is reported. The empty name, which stands for the whole
/// server, is reported too.
const NAMES: [&str; 3] = [
    "ratelimit",
    "envoy.service.ratelimit.v3.RateLimitService",
    "envoy.service.auth.v3.Authorization",
];
/// The largest number of `Watch` calls that may be open at once on the whole server.
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

    /// Counts a new `Watch` call towards the limits of its connection and of the server, until the
    /// result is dropped. Returns an error if either has too many of them.
    fn begin_watch(&self, held: &HeldBytes) -> Result<[OwnedSemaphorePermit; 2], TryAcquireError> {
        let place = |places: &Arc<Semaphore>| Arc::clone(places).try_acquire_owned();
        Ok([place(&held.endless)?, place(&self.watches)?])
    }
}

/// Returns the response of tonic's services. A call to `Watch`, which stays open and reports each change of the
/// server's health, counts towards the limits of its connection and of the server.
async fn of_service(
    services: &Services,
    held: &HeldBytes,
    request: Request<Body>,
) -> Response<Body> {
    let is_watch = request.uri().path() == "/grpc.health.v1.Health/Watch";
    let watch = is_watch.then(|| services.begin_watch(held));
    if let Some(Err(_)) = watch {
        return Status::resource_exhausted("too many Watch calls at once").into_http();
    }
    let Ok(response) = services.others.clone().oneshot(request).await;
    response.map(|body| Body::new(body.map_frame(move |frame| (frame, &watch).0)))
}
