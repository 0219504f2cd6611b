//! The limit on the number of files and sockets that the process may open.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

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
