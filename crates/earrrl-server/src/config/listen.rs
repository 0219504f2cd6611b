//! Addresses to listen on, as the configuration spells them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use super::table::Table;

/// The forms of a listening address, as errors list them.
pub const EXPECTED: &str = "expected an address and port, as \"127.0.0.1:8080\", \"[::1]:8080\", \"localhost:8080\", \
     \":8080\" for all addresses or \"8080\" for this machine only, or a Unix socket, as \"unix:/run/earrrl.sock\"";

/// The prefix of an address that is the path of a Unix socket.
const UNIX: &str = "unix:";
/// The length in bytes of the longest path that a Unix socket may have on Linux.
const MAX_PATH_LEN: usize = 107;

/// The protocols that have listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP with JSON bodies.
    Http,
    /// RESP, the protocol of Redis clients.
    Resp,
    /// HTTP for health checks and metrics only.
    Admin,
    /// gRPC.
    Grpc,
}

impl Protocol {
    /// All protocols, in the order in which systemd passes listeners that have no names.
    pub const ALL: [Self; 4] = [Self::Http, Self::Resp, Self::Admin, Self::Grpc];

    /// Returns the protocol's name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Resp => "resp",
            Self::Admin => "admin",
            Self::Grpc => "grpc",
        }
    }

    /// Returns the protocols that the list in a field names; `None` if the field is not set.
    pub(super) fn list(table: &Table<'_>, name: &'static str) -> Option<Vec<Self>> {
        let choices = Self::ALL.map(|protocol| (protocol.name(), protocol));
        let items = table.field(name)?.items()?.into_iter();
        Some(items.filter_map(|field| field.choice(&choices)).collect())
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket in the file system.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Returns the IP address and port, unless this is a Unix socket.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Returns true if two listeners cannot have these two addresses at the same time.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (Some(one), Some(two)) = (self.tcp(), other.tcp()) else {
            return self == other;
        };
        let all = one.ip().is_unspecified() || two.ip().is_unspecified();
        one.port() != 0 && one.port() == two.port() && (one.ip() == two.ip() || all)
    }

    /// Returns true if other machines can reach the address.
    pub fn is_remote(&self) -> bool {
        self.tcp()
            .is_some_and(|address| !address.ip().is_loopback())
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    /// Parses a listening address.
    ///
    /// # Errors
    /// Returns the forms that an address may have if `text` has none of them.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix(UNIX) {
            return unix(path);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Tcp(address));
        }
        let (host, port) = text.rsplit_once(':').unwrap_or(("localhost", text));
        let ip: Option<IpAddr> = match host {
            "" | "*" => Some(Ipv4Addr::UNSPECIFIED.into()),
            "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
            _ => None,
        };
        // The port must be digits only, since parsing a `u16` would accept a plus sign.
        let port = port
            .parse()
            .ok()
            .filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()));
        let address = ip.zip(port).map(SocketAddr::from);
        address.map(Self::Tcp).ok_or_else(|| EXPECTED.to_owned())
    }
}

fn unix(path: &str) -> Result<ListenAddress, String> {
    if path.is_empty() || path.contains('\0') {
        return Err(EXPECTED.to_owned());
    }
    if path.len() > MAX_PATH_LEN {
        let length = path.len();
        return Err(format!(
            "a path of {length} bytes; a Unix socket's has at most {MAX_PATH_LEN}"
        ));
    }
    Ok(ListenAddress::Unix(path.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_people_write_them() {
        for (text, address) in [
            ("127.0.0.1:8080", Some("127.0.0.1:8080")),
            ("[::1]:80", Some("[::1]:80")),
            ("8080", Some("127.0.0.1:8080")),
            (":8080", Some("0.0.0.0:8080")),
            ("*:8080", Some("0.0.0.0:8080")),
            ("localhost:8080", Some("127.0.0.1:8080")),
            ("0", Some("127.0.0.1:0")),
            ("unix:/run/earrrl.sock", Some("unix:/run/earrrl.sock")),
            ("unix:here.sock", Some("unix:here.sock")),
            ("", None),
            (":", None),
            ("localhost", None),
            ("+80", None),
            ("65536", None),
            ("::1:80", None),
            ("example.org:80", None),
            ("unix:", None),
            (&format!("unix:/{}", "a".repeat(107)), None),
        ] {
            let parsed = text
                .parse::<ListenAddress>()
                .ok()
                .map(|address| address.to_string());
            assert_eq!(parsed.as_deref(), address, "{text}");
        }
    }

    #[test]
    fn a_socket_in_the_file_system_is_not_remote() {
        for (text, remote) in [("unix:/a", false), ("127.0.0.1:1", false), (":1", true)] {
            assert_eq!(
                text.parse::<ListenAddress>().unwrap().is_remote(),
                remote,
                "{text}"
            );
        }
    }
}
