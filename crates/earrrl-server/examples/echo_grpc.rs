//! A bare tonic service that answers every request of Envoy's with OK: what `earrrl serve --grpc` is
//! measured against. `bench/envoy.py` runs both.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

struct Echo;

#[tonic::async_trait]
impl RateLimitService for Echo {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let limit = RateLimit { name: String::new(), requests_per_unit: 1, unit: 1 };
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(limit),
            limit_remaining: 1,
            ..DescriptorStatus::default()
        };
        let statuses = vec![status; request.into_inner().descriptors.len()];
        let overall_code = Code::Ok.into();
        Ok(Response::new(RateLimitResponse { overall_code, statuses, ..Default::default() }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8081".to_owned()).parse()?;
    Ok(Server::builder().add_service(RateLimitServiceServer::new(Echo)).serve(address).await?)
}
