//! How many files and sockets the process may open.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one. Answers the limit; `None` for no limit.
///
/// # Errors
/// When the system does not let it.
pub fn raise() -> io::Result<Option<u64>> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(limit.current)
}
