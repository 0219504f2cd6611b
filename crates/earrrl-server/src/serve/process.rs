//! The process and its supervisor: the limit on the files and sockets that it may open; and messages to systemd, for
//! units of `Type=notify` and `Type=notify-reload`, which go nowhere without it.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;

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
