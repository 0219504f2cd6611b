//! The limit on the number of files and sockets that the process may open.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

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
