//! Which service answers which path.

use axum::Router;
use axum::http::{Method, Request};
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use earrrl::Mode;

/// The names under which health is told, beside the empty one for all.
const NAMES: [&str; 3] = [
    "ratelimit",
    "envoy.service.ratelimit.v3.RateLimitService",
    "envoy.service.auth.v3.Authorization",
];
/// The messages of the services for Envoy, for reflection; `scripts/descriptors` makes it.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");

/// The services that are called rarely, and the reporter of their health.
#[derive(Clone, Debug)]
pub struct Services {
    others: Router,
    health: HealthReporter,
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
    Services { others: routes.prepare().into_axum_router(), health }
}

impl Services {
    /// From here on health says that the server serves.
    pub async fn announce_start(&self) {
        self.announce(ServingStatus::Serving).await;
    }

    /// From here on health says that the server is going.
    pub async fn announce_stop(&self) {
        self.announce(ServingStatus::NotServing).await;
    }

    async fn announce(&self, status: ServingStatus) {
        for name in NAMES.into_iter().chain([""]) {
            self.health.set_service_status(name, status).await;
        }
    }

    /// Those of tonic's.
    pub(super) fn others(&self) -> Router {
        self.others.clone()
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A decision on descriptors.
    RateLimit(Mode),
    /// `ext_authz`.
    Authorization,
    /// A service of tonic's, or nothing that is known.
    Other,
}

/// What a request asks for, by its path.
pub(super) fn kind_of<B>(request: &Request<B>) -> Kind {
    if request.method() != Method::POST {
        return Kind::Other;
    }
    match request.uri().path() {
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
            Kind::RateLimit(Mode::Check)
        }
        "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit" => {
            Kind::RateLimit(Mode::Peek)
        }
        "/kuadrant.service.ratelimit.v1.RateLimitService/Report" => Kind::RateLimit(Mode::Charge),
        "/envoy.service.auth.v3.Authorization/Check" => Kind::Authorization,
        _ => Kind::Other,
    }
}
