//! Listeners that were opened before this process started, by socket activation of systemd.
//!
//! These listeners stay open between the stop of one server and the start of the next. So a restart
//! refuses no client: new connections wait in the backlog.
//!
//! Beside them are the messages to systemd, for units of `Type=notify` and `Type=notify-reload`, which go nowhere
//! without it, and the limit on the files and sockets that the process may open.

use std::io;

use listenfd::ListenFd;
use rustix::process::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use socket2::Socket;

use crate::config::listen::Protocol;

/// The listeners that systemd passed to this process, each with its protocol. The protocol is the
/// listener's name (`FileDescriptorName=http`), or if listeners have no names, it follows from
/// their order, which is that of [`Protocol::ALL`].
#[derive(Debug, Default)]
pub struct HandedOver(Vec<(Protocol, Socket)>);

impl HandedOver {
    /// Takes the sockets that `LISTEN_FDS` announces; none if the variable is meant for another
    /// process.
    ///
    /// # Errors
    /// Returns an error if one of the files is not a listening socket, or if the names are not
    /// those of protocols.
    pub fn from_env() -> io::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut sockets = ListenFd::from_env();
        let mut handed = Vec::new();
        for (place, protocol) in assign(&names, sockets.len())?.into_iter().enumerate() {
            handed.extend(take(&mut sockets, place)?.map(|listener| (protocol, listener)));
        }
        Ok(Self(handed))
    }

    /// Removes and returns the listener for a protocol.
    pub fn take(&mut self, protocol: Protocol) -> Option<Socket> {
        let place = self.0.iter().position(|(known, _)| *known == protocol)?;
        Some(self.0.swap_remove(place).1)
    }
}

fn take(sockets: &mut ListenFd, place: usize) -> io::Result<Option<Socket>> {
    match sockets.take_tcp_listener(place) {
        Ok(listener) => Ok(listener.map(Socket::from)),
        Err(_) => Ok(sockets.take_unix_listener(place)?.map(Socket::from)),
    }
}

/// Returns the protocol of each of `count` sockets, from their names or their order.
fn assign(names: &str, count: usize) -> io::Result<Vec<Protocol>> {
    let named = names.split(':');
    let found: Vec<Protocol> = named
        .filter_map(|name| Protocol::ALL.into_iter().find(|known| known.name() == name))
        .collect();
    let wanted = match found.len() {
        0 => Protocol::ALL.into_iter().take(count).collect(),
        _ => found,
    };
    let distinct = wanted
        .iter()
        .enumerate()
        .all(|(place, one)| !wanted[..place].contains(one));
    if wanted.len() == count && distinct {
        return Ok(wanted);
    }
    let want =
        "LISTEN_FDNAMES: expected each socket to be named http, resp, admin or grpc, once each";
    Err(io::Error::new(io::ErrorKind::InvalidInput, want))
}

/// The number of files that a server has open beside its connections: listeners, event queues, state files, and
/// the connections that are accepted only to be refused.
pub const BESIDE_CONNECTIONS: u64 = 100;

/// Raises the soft limit on open files to the hard limit, and returns the limit; `None` for no
/// limit.
///
/// # Errors
/// Returns the system's error if the limit cannot be read or raised.
pub fn raise() -> io::Result<Option<u64>> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(limit.current)
}

/// Reports that the server accepts connections, or has ended a reload.
pub(super) fn ready() {
    send(&[NotifyState::Ready]);
}

/// Reports that a reload begins. systemd compares the time with that of its SIGHUP, so that it does not take the end of an
/// earlier reload for the end of this one.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => {
            tracing::warn!(%error, "systemd learns of no reload: the clock cannot be read")
        }
    }
}

/// Reports that the server is stopping.
pub(super) fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        tracing::warn!(%error, "systemd cannot be told about the state of the server");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_told_apart_by_name_or_order() {
        for (names, count, expected) in [
            ("", 0, Some(&[][..])),
            ("", 2, Some(&["http", "resp"])),
            ("", 4, Some(&["http", "resp", "admin", "grpc"])),
            ("unknown:unknown", 2, Some(&["http", "resp"])),
            ("resp:http", 2, Some(&["resp", "http"])),
            ("grpc:http", 2, Some(&["grpc", "http"])),
            ("admin", 1, Some(&["admin"])),
            ("resp:resp", 2, None),
            ("resp:web", 2, None),
            ("", 5, None),
        ] {
            let found = assign(names, count).ok();
            let found = found.map(|all| all.into_iter().map(Protocol::name).collect::<Vec<_>>());
            assert_eq!(found.as_deref(), expected, "{names} {count}");
        }
    }
}
