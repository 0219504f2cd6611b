//! axum behind nginx (`nginx.conf` beside this file): the client is the address that nginx appends to
//! `X-Forwarded-For`, whatever a client has put into it.
use std::net::SocketAddr;

use axum::{Router, routing::get};
use earrrl::MemoryEngine;
use earrrl_tower::{ClientAddress, RateLimitLayer, RequestRule};

type Error = Box<dyn std::error::Error>;

pub(crate) fn app() -> Result<Router, Error> {
    let behind_nginx = ClientAddress::default().trust("127.0.0.1/32".parse()?);
    let rule = RequestRule::new("address", "gcra 0.1/s burst=5".parse()?, behind_nginx);
    let layer = RateLimitLayer::builder(MemoryEngine::new(100_000)?)
        .rule(rule)
        .build()?;
    Ok(Router::new().route("/", get("hello\n")).layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let app = app()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}
