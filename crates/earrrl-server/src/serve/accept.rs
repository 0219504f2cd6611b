//! Accepts connections, also those from load balancers, which name their clients by the PROXY protocol. After a
//! failure, whose cause may be temporary, such as a lack of file descriptors, it tries again.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use rustix::io::Errno;

use super::socket::{Listener, Socket};
use crate::config::listen::Protocol;
use crate::connections::{Connection, Refused};
use crate::log::Seldom;
use crate::proxy_protocol::read_head;
use crate::server::Server;
use crate::stream::Stream;

/// The pause before the next `accept` when the process has no file descriptor or memory left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// Limits the log to one line a minute for all listeners, since they lack the same descriptors.
static EXHAUSTION_LOGGED: Seldom = Seldom::new();

/// Returns the next connection of a listener, and the address of its peer.
pub(super) async fn next(listener: &Listener) -> (Socket, IpAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
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
    if matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    ) {
        if EXHAUSTION_LOGGED.is_due(60) {
            tracing::warn!(%error, "can't accept now; connections wait");
        }
        tokio::time::sleep(EXHAUSTED_PAUSE).await;
    }
}

/// Reads the head that a load balancer sends first, and counts the connection as one of the client
/// that the head names. Returns the client's address, or the load balancer's own if it names no
/// client. Returns `None` if the connection must be closed: the peer is no trusted proxy, its head
/// is invalid or late, or its client has too many connections.
pub(super) async fn receive(
    protocol: Protocol,
    stream: &mut Stream,
    connection: &mut Connection,
    server: &Server,
) -> Option<IpAddr> {
    let metrics = &server.service.metrics;
    let balancer = stream.peer()?;
    if !server
        .service
        .rules()
        .reading
        .client_address
        .trusts(balancer)
    {
        metrics.count_proxy_head("untrusted");
        tracing::debug!(%balancer, "not in trusted_proxies: its connection is closed");
        return None;
    }
    let head = connection.in_time(read_head(stream)).await;
    metrics.count_proxy_head(result(&head));
    let client = match head {
        Ok(client) => client.unwrap_or(balancer),
        Err(error) => {
            tracing::debug!(%balancer, %error, "no PROXY head: its connection is closed");
            return None;
        }
    };
    if let Err(refused) = connection.belongs_to(client) {
        metrics.refused.increment();
        // A client that uses TLS could not read an unencrypted reply.
        if !server.tls.as_ref().is_some_and(|tls| tls.covers(protocol)) {
            // A failure does not matter, since the connection is closed next.
            let _ = stream.try_write(refusal(protocol, refused).as_bytes());
        }
        return None;
    }
    Some(client)
}

/// Returns the name in metrics of a result of reading a head.
fn result(head: &io::Result<Option<IpAddr>>) -> &'static str {
    match head {
        Ok(Some(_)) => "client",
        Ok(None) => "local",
        Err(error) => match error.kind() {
            io::ErrorKind::InvalidData => "invalid",
            io::ErrorKind::TimedOut => "late",
            _ => "closed",
        },
    }
}

/// The longest pause between two retries, in seconds.
const LONGEST: u32 = 8;

/// Schedules retries after a failure, at pauses of 1, 2, 4 and then 8 seconds.
#[derive(Debug, Default)]
pub(super) struct Again {
    /// The length of the current pause in seconds; zero if the last attempt succeeded.
    pause: u32,
    /// The number of seconds that remain of the current pause.
    left: u32,
}

impl Again {
    /// Records the result of an attempt, and starts the pause before the next one.
    pub(super) fn attempted(&mut self, succeeded: bool) {
        self.pause = if succeeded {
            0
        } else {
            (2 * self.pause).clamp(1, LONGEST)
        };
        self.left = self.pause;
    }

    /// Records that a second has passed, and returns true if the pause is over and a retry is due.
    pub(super) fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.pause > 0 && self.left == 0
    }
}

#[cfg(test)]
mod again_tests {
    use super::*;

    #[test]
    fn pauses_grow_until_it_succeeds() {
        let mut again = Again::default();
        let due = |again: &mut Again| (1..=20).find(|_| again.is_due());
        assert_eq!(due(&mut again), None);
        for pause in [1, 2, 4, 8, 8] {
            again.attempted(false);
            assert_eq!(due(&mut again), Some(pause));
        }
        again.attempted(true);
        assert_eq!(due(&mut again), None);
    }
}
