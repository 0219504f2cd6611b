//! The fields of a request, whatever the format calls them.

/// A part of a request that a key or a cost is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// The client's address.
    Client,
    /// The user's name.
    User,
    /// The path, without the query.
    Path,
    /// The list of X-Forwarded-For, of which the last address counts.
    Forwarded,
    /// Any other, by the name that the format gives it.
    Named(String),
}

impl Field {
    /// The field of this name.
    pub fn new(name: &str) -> Self {
        match name {
            "client" => Self::Client,
            "user" => Self::User,
            "path" => Self::Path,
            "forwarded_for" | "x_forwarded_for" | "http_x_forwarded_for" | "x-forwarded-for" => {
                Self::Forwarded
            }
            _ => Self::Named(name.to_owned()),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Client => "client",
            Self::User => "user",
            Self::Path => "path",
            Self::Forwarded => "forwarded_for",
            Self::Named(name) => name,
        }
    }
}

/// A target's path: without its query, and without the scheme and host that a proxy is asked with.
pub(super) fn path_of(target: &[u8]) -> &[u8] {
    let behind_scheme = |scheme: &[u8]| {
        let rest = target.strip_prefix(scheme)?;
        Some(&rest[memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len())..])
    };
    let path = match target.first() {
        Some(b'/') | None => target,
        _ => behind_scheme(b"https://").or_else(|| behind_scheme(b"http://")).unwrap_or(target),
    };
    memchr::memchr(b'?', path).map_or(path, |at| &path[..at])
}

/// The target in a request line, `GET /path?query HTTP/1.1`.
pub(super) fn target(request: &[u8]) -> Option<&[u8]> {
    let mut words = request.split(|&b| b == b' ').filter(|word| !word.is_empty());
    words.next()?;
    words.next()
}
