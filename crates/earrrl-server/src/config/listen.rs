//! Where to listen, as people write it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// What is expected of an address to listen on.
pub const EXPECTED: &str = "expected an address and port, as \"127.0.0.1:8080\", \"[::1]:8080\", \"localhost:8080\", \
     \":8080\" for all addresses or \"8080\" for this machine only";

/// The address that a text says.
///
/// # Errors
/// What was expected.
pub fn parse(text: &str) -> Result<SocketAddr, String> {
    let text = text.trim();
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("localhost", text));
    let ip: Option<IpAddr> = match host {
        "" | "*" => Some(Ipv4Addr::UNSPECIFIED.into()),
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        _ => None,
    };
    // A port that `u16` takes with a sign is none.
    let port = port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()));
    ip.zip(port).map(SocketAddr::from).ok_or_else(|| EXPECTED.to_owned())
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
            ("", None),
            (":", None),
            ("localhost", None),
            ("+80", None),
            ("65536", None),
            ("::1:80", None),
            ("example.org:80", None),
        ] {
            let parsed = parse(text).ok().map(|address| address.to_string());
            assert_eq!(parsed.as_deref(), address, "{text}");
        }
    }
}
