//! hyper without a framework, HTTP/1.1 and HTTP/2: the connection's address goes into each request's
//! extensions, where the layer finds it.
use std::convert::Infallible;

use bytes::Bytes;
use earrrl::MemoryEngine;
use earrrl_tower::{ClientAddress, PeerAddress, RateLimitLayer, RequestRule};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tower::{ServiceBuilder, service_fn};

type Error = Box<dyn std::error::Error + Send + Sync>;

pub(crate) async fn serve(listener: TcpListener) -> Result<(), Error> {
    let address = ClientAddress::default();
    let rule = RequestRule::new("address", "gcra 0.1/s burst=20".parse()?, address);
    let layer = RateLimitLayer::builder(MemoryEngine::new(100_000)?)
        .rule(rule)
        .build()?;
    loop {
        let (stream, peer) = listener.accept().await?;
        let service = ServiceBuilder::new()
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(PeerAddress(peer.ip()));
                request
            })
            .layer(layer.clone())
            .service(service_fn(async |_| {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello\n"))))
            }));
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            let service = TowerToHyperService::new(service);
            // A connection that breaks off concerns nobody else.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    serve(TcpListener::bind("127.0.0.1:3000").await?).await
}
