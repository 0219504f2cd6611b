//! The fields of a request, independent of their names in each log format.

/// A field of a request that a key or a cost is made of.
///
/// ```
/// use earrrl_logs::format::Field;
///
/// assert_eq!(Field::new("user").name(), "user");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// The client's address.
    Client,
    /// The user's name.
    User,
    /// The path, without the query.
    Path,
    /// The list of X-Forwarded-For; its last address is used.
    Forwarded,
    /// Any other field, by the name that it has in the log format.
    Named(String),
}

impl Field {
    /// Returns the field with this name.
    ///
    /// ```
    /// # use earrrl_logs::format::Field;
    /// assert_eq!(Field::new("client"), Field::Client);
    /// assert_eq!(Field::new("tenant"), Field::Named("tenant".to_owned()));
    /// ```
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

    /// Returns the name of the field.
    ///
    /// ```
    /// # use earrrl_logs::format::Field;
    /// assert_eq!(Field::Forwarded.name(), "forwarded_for");
    /// ```
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

/// Returns the path of a request's target, without the query, and without the scheme and host that
/// requests to a proxy contain.
pub(super) fn path_of(target: &[u8]) -> &[u8] {
    let behind_scheme = |scheme: &[u8]| {
        let rest = target.strip_prefix(scheme)?;
        Some(&rest[memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len())..])
    };
    let path = match target.first() {
        Some(b'/') | None => target,
        _ => behind_scheme(b"https://")
            .or_else(|| behind_scheme(b"http://"))
            .unwrap_or(target),
    };
    memchr::memchr(b'?', path).map_or(path, |at| &path[..at])
}

/// Returns the target in a request line such as `GET /path?query HTTP/1.1`.
pub(super) fn target(request: &[u8]) -> Option<&[u8]> {
    let mut words = request
        .split(|&b| b == b' ')
        .filter(|word| !word.is_empty());
    words.next()?;
    words.next()
}
