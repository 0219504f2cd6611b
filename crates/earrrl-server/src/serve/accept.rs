//! The loop that accepts connections.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::socket::{Listener, Socket};
use crate::config::listen::Protocol;
use crate::connections::{Connection, Refused};
use crate::log::Seldom;

/// The pause before the next `accept` when the process has no file descriptor or memory left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// Limits the log to one line a minute for all listeners, since they lack the same descriptors.
static EXHAUSTION_LOGGED: Seldom = Seldom::new();

/// Accepts connections until the task is dropped, and passes on those that the limits admit.
pub async fn accept(
    listener: Listener,
    admit: impl Fn(IpAddr) -> Result<Connection, Refused>,
    pass_on: impl Fn(Socket, Connection),
    refuse: impl Fn(&Socket, Refused),
) {
    loop {
        match listener.accept().await {
            Ok((socket, address)) => match admit(address) {
                Ok(connection) => pass_on(socket, connection),
                Err(refused) => refuse(&socket, refused),
            },
            Err(error) => survive(&error).await,
        }
    }
}

/// Returns the reply that reports to a client why its connection is refused.
pub(super) fn refusal(protocol: Protocol, refused: Refused) -> &'static str {
    match (protocol, refused) {
        (Protocol::Resp, Refused::Full) => "-ERR max number of clients reached\r\n",
        (Protocol::Resp, Refused::AddressFull) => "-ERR too many connections from this address\r\n",
        (Protocol::Resp, Refused::Stopping) => "-ERR the server is stopping\r\n",
        // A client that uses HTTP/2 retries when the connection is closed, so it needs no message.
        (Protocol::Grpc, _) => "",
        (Protocol::Http | Protocol::Admin, _) => {
            "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n"
        }
    }
}

/// Pauses if an error of `accept` is a lack of descriptors or memory, since `accept` would fail
/// again at once. Connections wait in the backlog until others have closed. Other errors concern
/// only the one connection.
async fn survive(error: &io::Error) {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ENOBUFS: i32 = 105;
    const ENOMEM: i32 = 12;
    if matches!(
        error.raw_os_error(),
        Some(EMFILE | ENFILE | ENOBUFS | ENOMEM)
    ) {
        if EXHAUSTION_LOGGED.is_due(60) {
            tracing::warn!(%error, "can't accept now; connections wait");
        }
        tokio::time::sleep(EXHAUSTED_PAUSE).await;
    }
}
