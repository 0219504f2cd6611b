//! axum: requests limited by address and by API key, with costs by route.
use std::net::SocketAddr;

use axum::{Router, routing::get};
use earrrl::{Cost, MemoryEngine};
use earrrl_tower::{ClientAddress, Missing, RateLimitLayer, RequestRule, cost, key};

type Error = Box<dyn std::error::Error>;

pub(crate) fn app() -> Result<Router, Error> {
    let address = ClientAddress::default();
    let limit = "recent-average 5/s half-life=30s".parse()?;
    let by_address = RequestRule::new("address", limit, address);
    let api_key = key::header(http::HeaderName::from_static("x-api-key"));
    let by_key = RequestRule::new("key", "token-bucket 100 refill=10/s".parse()?, api_key)
        .missing(Missing::Skip)
        .cost_by(cost::by_path([("/export/{id}", Cost::from_units(20))]));
    let builder = RateLimitLayer::builder(MemoryEngine::new(100_000)?);
    let router = Router::new()
        .route("/", get("hello\n"))
        .route("/export/{id}", get("exported\n"));
    Ok(router.layer(builder.rule(by_address).rule(by_key).build()?))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let app = app()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}
