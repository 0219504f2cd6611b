//! tonic: a server with unary and streaming calls, limited by the caller's address. A call over the
//! limit is answered RESOURCE_EXHAUSTED.
use earrrl::MemoryEngine;
use earrrl_tower::{ClientAddress, RateLimitLayer, RequestRule};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

type Error = Box<dyn std::error::Error + Send + Sync>;

pub(crate) async fn serve(listener: TcpListener) -> Result<(), Error> {
    let address = ClientAddress::default();
    let rule = RequestRule::new("address", "gcra 0.1/s burst=3".parse()?, address);
    let layer = RateLimitLayer::builder(MemoryEngine::new(100_000)?)
        .rule(rule)
        .build()?;
    // Any service will do; that of health checks has a unary and a streaming call.
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    Ok(server
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await?)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    serve(TcpListener::bind("127.0.0.1:3000").await?).await
}
