//! The gRPC services, and the paths that they answer.

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Request};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use earrrl::Mode;

use crate::protocol::http2::held::{EndlessCall, HeldBytes};

/// The services whose health is reported, besides the empty name for the whole server.
const NAMES: [&str; 3] = [
    "ratelimit",
    "envoy.service.ratelimit.v3.RateLimitService",
    "envoy.service.auth.v3.Authorization",
];
/// The most calls at once that watch the server's health, on one connection and in all. A client needs one
/// for each name.
const WATCHES_A_CONNECTION: usize = 8;
const MAX_WATCHES: usize = 1024;
/// The messages of the services for Envoy, for reflection; `scripts/descriptors` makes it.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");

/// The services that are called rarely, and the reporter of their health.
#[derive(Clone, Debug)]
pub struct Services {
    others: Router,
    health: HealthReporter,
    watches: Arc<Semaphore>,
}

/// A call that watches the server's health, among those of its connection and of the server.
#[derive(Debug)]
pub(super) struct Watch {
    _of_connection: EndlessCall,
    _of_server: OwnedSemaphorePermit,
}

/// The services; [`Services::announce_start`] says that they serve.
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
    Services { others: routes.prepare().into_axum_router(), health, watches }
}

impl Services {
    /// Makes the health service report from now on that the server serves.
    pub async fn announce_start(&self) {
        self.announce(ServingStatus::Serving).await;
    }

    /// Makes the health service report from now on that the server is stopping.
    pub async fn announce_stop(&self) {
        self.announce(ServingStatus::NotServing).await;
    }

    async fn announce(&self, status: ServingStatus) {
        for name in NAMES.into_iter().chain([""]) {
            self.health.set_service_status(name, status).await;
        }
    }

    /// Counts a call that watches the server's health; `None` if there are too many.
    pub(super) fn begin_watch(&self, held: &Arc<HeldBytes>) -> Option<Watch> {
        Some(Watch {
            _of_connection: held.begin_endless(WATCHES_A_CONNECTION)?,
            _of_server: Arc::clone(&self.watches).try_acquire_owned().ok()?,
        })
    }

    /// Returns the router of tonic's services.
    pub(super) fn others(&self) -> Router {
        self.others.clone()
    }
}

/// The kind of call that a request makes.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallKind {
    /// A decision on descriptors.
    RateLimit(Mode),
    /// `ext_authz`.
    Authorization,
    /// A call to one of tonic's services, or to an unknown path.
    Other,
}

/// Returns the kind of call that a request makes, by its method and path.
pub(super) fn kind_of<B>(request: &Request<B>) -> CallKind {
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
        "/envoy.service.auth.v3.Authorization/Check" => CallKind::Authorization,
        _ => CallKind::Other,
    }
}
