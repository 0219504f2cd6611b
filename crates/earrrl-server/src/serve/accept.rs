//! The loop that accepts connections.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::socket::{Listener, Socket};
use crate::connections::{Connection, Refused};

/// The pause before the next `accept` when the process has no file descriptor or memory left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

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

/// Pauses if an error of `accept` is a lack of descriptors or memory, since `accept` would fail
/// again at once. Connections wait in the backlog until others have closed. Other errors concern
/// only the one connection.
async fn survive(error: &io::Error) {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ENOBUFS: i32 = 105;
    const ENOMEM: i32 = 12;
    if matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOBUFS | ENOMEM)) {
        tracing::warn!(%error, "can't accept now; connections wait");
        tokio::time::sleep(EXHAUSTED_PAUSE).await;
    }
}
