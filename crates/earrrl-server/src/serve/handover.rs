//! Listeners that were opened before this process began: systemd's socket activation.
//!
//! They stay open while one server goes and the next comes, so a restart refuses nobody: clients
//! wait in the backlog meanwhile.

use std::io;
use std::net::TcpListener;

use listenfd::ListenFd;

/// The names that a socket may have (`FileDescriptorName=`), and their order where they have none.
const NAMES: [&str; 3] = ["http", "resp", "admin"];

/// Listeners that were handed over.
#[derive(Debug, Default)]
pub struct HandedOver {
    /// For HTTP.
    pub http: Option<TcpListener>,
    /// For RESP.
    pub resp: Option<TcpListener>,
    /// For health and metrics.
    pub admin: Option<TcpListener>,
}

impl HandedOver {
    /// Those that `LISTEN_FDS` tells of; none where that is not for this process.
    ///
    /// # Errors
    /// When one is no TCP socket, or they are not named as expected.
    pub fn from_env() -> io::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut sockets = ListenFd::from_env();
        let mut handed = Self::default();
        for (place, name) in assign(&names, sockets.len())?.into_iter().enumerate() {
            let listener = sockets.take_tcp_listener(place)?;
            *handed.place(name) = listener;
        }
        Ok(handed)
    }

    fn place(&mut self, name: &str) -> &mut Option<TcpListener> {
        match name {
            "http" => &mut self.http,
            "resp" => &mut self.resp,
            _ => &mut self.admin,
        }
    }
}

/// What each of `count` sockets is for.
fn assign(names: &str, count: usize) -> io::Result<Vec<&'static str>> {
    let named: Vec<&str> = names.split(':').collect();
    let known = |name: &&str| NAMES.into_iter().find(|known| known == name);
    let found: Vec<&'static str> = named.iter().filter_map(known).collect();
    let wanted = match found.len() {
        0 => NAMES.into_iter().take(count).collect(),
        _ => found,
    };
    let mut distinct = wanted.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if wanted.len() == count && distinct.len() == count {
        return Ok(wanted);
    }
    let want = "LISTEN_FDNAMES: expected each socket to be named http, resp or admin, once each";
    Err(io::Error::new(io::ErrorKind::InvalidInput, want))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_told_apart_by_name_or_order() {
        for (names, count, expected) in [
            ("", 0, Some(&[][..])),
            ("", 2, Some(&["http", "resp"])),
            ("unknown:unknown", 2, Some(&["http", "resp"])),
            ("resp:http", 2, Some(&["resp", "http"])),
            ("admin", 1, Some(&["admin"])),
            ("resp:resp", 2, None),
            ("resp:web", 2, None),
            ("", 4, None),
        ] {
            assert_eq!(assign(names, count).ok().as_deref(), expected, "{names} {count}");
        }
    }
}
