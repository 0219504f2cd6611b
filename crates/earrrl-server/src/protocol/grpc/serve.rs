//! One gRPC connection.

use std::convert::Infallible;
use std::sync::Arc;

use super::services::Services;
use crate::connections::Connection;
use crate::protocol::first::Rewound;
use crate::protocol::http2;
use crate::server::Server;
use crate::stream::Stream;

/// Serves a connection to its end.
pub async fn serve(
    stream: Stream,
    connection: Connection,
    server: Arc<Server>,
    services: Services,
) {
    let answering = Arc::clone(&server);
    let answer = move |request| {
        let (server, services) = (Arc::clone(&answering), services.clone());
        async move {
            let answer = services.answer(&server, request).await;
            // A call that fails says so in the headers; one that succeeds, behind its message.
            let code =
                answer.headers().get("grpc-status").map_or(&b"0"[..], |code| code.as_bytes());
            server.service.metrics.count_status(answer.status().as_u16());
            server.service.metrics.count_grpc(code);
            Ok::<_, Infallible>(answer)
        }
    };
    http2::serve(Rewound::new(stream), Arc::new(connection), &server, answer).await;
}
