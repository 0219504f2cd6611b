//! A gRPC client, and a server of a single method, for the messages of any service.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::post_service;
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{IntoRequest, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

/// Connects to a server.
pub async fn connect(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

/// Calls a unary method.
pub async fn call<Q, A>(
    channel: &Channel,
    method: &'static str,
    request: impl IntoRequest<Q>,
) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let method = PathAndQuery::from_static(method);
    let answer = client
        .unary(request.into_request(), method, ProstCodec::default())
        .await;
    answer.map(Response::into_inner)
}

/// Serves a method that streams in both directions, as long as the future is polled.
pub async fn serve_stream<Q, A, S, H>(address: SocketAddr, method: &str, handler: H)
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    S: tokio_stream::Stream<Item = Result<A, Status>> + Send + 'static,
    H: Service<tonic::Request<Streaming<Q>>, Response = Response<S>, Error = Status>
        + Clone
        + Send
        + Sync
        + 'static,
    H::Future: Send,
{
    let service = tower::service_fn(move |request| {
        let handler = handler.clone();
        async move {
            let codec = ProstCodec::<A, Q>::default();
            Ok::<_, Infallible>(
                tonic::server::Grpc::new(codec)
                    .streaming(handler, request)
                    .await,
            )
        }
    });
    let router = Router::new().route(method, post_service(service));
    Server::builder()
        .add_routes(Routes::from(router))
        .serve(address)
        .await
        .unwrap();
}
