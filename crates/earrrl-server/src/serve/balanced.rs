//! Connections from load balancers, which name their clients by the PROXY protocol.

use std::io;
use std::net::IpAddr;

use super::accept::refusal;
use crate::config::listen::Protocol;
use crate::connections::Connection;
use crate::proxy_protocol::read_head;
use crate::server::Server;
use crate::stream::Stream;

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
