//! The address of a server: HTTP, HTTPS or a Unix socket.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerAddress {
    /// A host and port, over plain HTTP.
    Plain(String),
    /// A host and port, over TLS.
    Tls(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(host) => f.write_str(host),
            Self::Tls(host) => write!(f, "https://{host}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("expected unix:/path/of/the/socket".to_owned()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        if let Some(host) = text.strip_prefix("https://") {
            return with_port(host, 443).map(Self::Tls);
        }
        if let Some(host) = text.strip_prefix("http://") {
            return with_port(host, 80).map(Self::Plain);
        }
        match text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
            Ok(port) => Ok(Self::Plain(format!("127.0.0.1:{port}"))),
            Err(_) if text.contains(':') => with_port(text, 80).map(Self::Plain),
            Err(_) => Err("expected HOST:PORT, http://…, https://… or unix:PATH".to_owned()),
        }
    }
}

fn with_port(host: &str, usual: u16) -> Result<String, String> {
    let host = host.trim_end_matches('/');
    if host.is_empty() || host.contains('/') {
        return Err("expected a host without a path".to_owned());
    }
    let after_brackets = host.rsplit(']').next().unwrap_or(host);
    match after_brackets.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(host.to_owned()),
        Some(_) => Err("expected a port from 0 to 65535".to_owned()),
        None => Ok(format!("{host}:{usual}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_as_people_write_them() {
        let plain = |a: &str| Some(ServerAddress::Plain(a.into()));
        let tls = |a: &str| Some(ServerAddress::Tls(a.into()));
        for (text, expected) in [
            ("8080", plain("127.0.0.1:8080")),
            (":8080", plain("127.0.0.1:8080")),
            ("10.0.0.5:8080", plain("10.0.0.5:8080")),
            ("http://host/", plain("host:80")),
            ("https://host", tls("host:443")),
            ("https://[::1]:8443", tls("[::1]:8443")),
            ("http://[::1]", plain("[::1]:80")),
            (
                "unix:/run/a.sock",
                Some(ServerAddress::Unix("/run/a.sock".into())),
            ),
            ("unix:", None),
            ("http://", None),
            ("https://host/path", None),
            ("host", None),
            ("host:x", None),
        ] {
            assert_eq!(text.parse().ok(), expected, "{text}");
        }
    }
}
