//! A bare tonic service that answers every request of Envoy's with OK: what `earrrl serve --grpc` is
//! measured against. `bench/envoy.py` runs both.

use std::convert::Infallible;

use axum::Router;
use axum::routing::post_service;
use earrrl_server::protobuf::ratelimit::{
    Code, DescriptorStatus, RateLimit, RateLimitRequest, RateLimitResponse,
};
use tonic::server::Grpc;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

async fn answer(request: Request<RateLimitRequest>) -> Result<Response<RateLimitResponse>, Status> {
    let limit = RateLimit {
        name: String::new(),
        requests_per_unit: 1,
        unit: 1,
    };
    let status = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: Some(limit),
        limit_remaining: 1,
        ..DescriptorStatus::default()
    };
    let statuses = vec![status; request.into_inner().descriptors.len()];
    let overall_code = Code::Ok.into();
    Ok(Response::new(RateLimitResponse {
        overall_code,
        statuses,
        ..Default::default()
    }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:8081".to_owned())
        .parse()?;
    let echo = service_fn(async |request| {
        let mut grpc = Grpc::new(ProstCodec::default());
        Ok::<_, Infallible>(grpc.unary(service_fn(answer), request).await)
    });
    let router = Router::new().route(METHOD, post_service(echo));
    Ok(Server::builder()
        .add_routes(Routes::from(router))
        .serve(address)
        .await?)
}
