//! Listening and accepting.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpListener;

use crate::connections::{Connection, Refused};

/// Connections that the kernel completes and keeps until they are accepted.
const BACKLOG: i32 = 4096;
/// How long to leave the rest in the backlog when the process has no descriptor left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// Listens on `address`.
///
/// # Errors
/// When the address is in use, is not one of this machine, or needs privileges.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Not SO_REUSEPORT: a restart may take the address over, a second server may not share it.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Takes over a socket that listens already.
///
/// # Errors
/// When it is none that can be waited for.
pub fn take_over(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Accepts until the task is dropped, and passes on what the limits admit.
pub async fn accept(
    listener: TcpListener,
    admit: impl Fn(IpAddr) -> Result<Connection, Refused>,
    pass_on: impl Fn(TcpStream, Connection),
    refuse: impl Fn(&TcpStream, Refused),
) {
    loop {
        let (stream, address) = match listener.accept().await {
            Ok((stream, address)) => match stream.into_std() {
                Ok(stream) => (stream, address),
                Err(_) => continue,
            },
            Err(error) => {
                survive(&error).await;
                continue;
            }
        };
        match admit(address.ip()) {
            Ok(connection) => {
                // An answer must not wait for the acknowledgement of the one before. It fails only
                // when the peer is gone already.
                let _ = SockRef::from(&stream).set_tcp_nodelay(true);
                pass_on(stream, connection);
            }
            Err(refused) => refuse(&stream, refused),
        }
    }
}

/// Most errors of `accept` belong to the one connection. Out of descriptors or memory is different:
/// it would fail again at once, so connections wait in the backlog until others have closed.
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
