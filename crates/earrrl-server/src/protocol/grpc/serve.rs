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
        async move { Ok::<_, Infallible>(services.answer(&server, request).await) }
    };
    http2::serve(Rewound::new(stream), Arc::new(connection), &server, answer).await;
}
