//! The fields of a request: independent of their names in each log format, and their usual names in formats
//! whose lines or headers name them.

use crate::line::{is_address, is_dotted, last_of_list};

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
pub(crate) fn path_of(target: &[u8]) -> &[u8] {
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
    let (_, request) = word(request)?;
    Some(word(request)?.0)
}

/// Splits a text behind its first word; `None` if it has none.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = text.iter().position(|&byte| byte != b' ')?;
    let end = memchr::memchr(b' ', &text[start..]).map_or(text.len(), |len| start + len);
    Some((&text[start..end], &text[end..]))
}

// The usual names of fields, for formats whose lines or headers name the fields.

/// The usual names of the field with the time.
pub(super) const TIMES: [&str; 19] = [
    "time",
    "time_iso8601",
    "@timestamp",
    "timestamp",
    "ts",
    "msec",
    "time_local",
    "datetime",
    "start_time",
    // Fields in the logs of Kong.
    "started_at",
    // Fields in the logs of Traefik.
    "StartUTC",
    // Fields in the logs of Cloudflare.
    "EdgeStartTimestamp",
    "Datetime",
    // Fields in the logs of API Gateway.
    "requestTimeEpoch",
    "requestTime",
    // Fields in the logs of Fastly, Vercel and Azure.
    "timestampInMs",
    "TimeGenerated",
    "timeStamp",
    "date",
];

/// The usual names of the field with the client. The names of fields in which a proxy reports the
/// client precede those of the connection's peer.
const CLIENTS: [&str; 32] = [
    "client_ip",
    "remote_addr",
    "remote",
    "remote_ip",
    "request.client_ip",
    "request.remote_ip",
    "request.remote_addr",
    "client.ip",
    "source.ip",
    "clientip",
    "clientIp",
    "ip",
    // Zeek's field, which precedes `client`: in its log of SSH that is the banner, which a client
    // chooses.
    "id.orig_h",
    "client",
    // Fields in the logs of Envoy and Istio.
    "downstream_remote_address",
    // Fields in the logs of Traefik.
    "ClientHost",
    "ClientAddr",
    // Fields in the logs of Cloudflare.
    "ClientIP",
    // Fields in the logs of Google Cloud.
    "httpRequest.remoteIp",
    // Fields in the logs of AWS API Gateway and AWS WAF.
    "sourceIp",
    "requestContext.identity.sourceIp",
    "requestContext.http.sourceIp",
    "identity.sourceIp",
    "httpRequest.clientIp",
    // Fields in the logs of Azure.
    "properties.clientIP",
    "properties.clientIp",
    // Fields in the logs of various other programs.
    "remoteAddress",
    "req.remoteAddress",
    // Fields in the logs of Suricata.
    "src_ip",
    "source_ip",
    // Fields of the W3C format.
    "c-ip",
    "c-dns",
];

const USERS: [&str; 13] = [
    "cs-username",
    "x-cs-username",
    "user",
    "remote_user",
    "user_id",
    "user.name",
    "username",
    "ClientUsername",
    "consumer.username",
    "authenticated_entity.consumer_id",
    "consumer.id",
    "caller",
    "request.user_id",
];

const PATHS: [&str; 18] = [
    "cs-uri-stem",
    "cs-uri",
    "path",
    "uri",
    "request_uri",
    "request.uri",
    "url",
    "url.path",
    "RequestPath",
    "ClientRequestPath",
    "ClientRequestURI",
    "httpRequest.requestUrl",
    "httpRequest.uri",
    "resourcePath",
    "rawPath",
    "properties.requestUri",
    "req.url",
    "request_path",
];

/// The usual names of the field with a list of addresses, to which each proxy appends its peer's
/// address.
const FORWARDED: [&str; 12] = [
    "forwardedfor",
    "cs(x-forwarded-for)",
    "x-forwarded",
    "x_forwarded_for",
    "forwarded_for",
    "http_x_forwarded_for",
    "x-forwarded-for",
    "X-Forwarded-For",
    "xff",
    "fwd",
    "request.headers.X-Forwarded-For",
    "request.headers.x-forwarded-for",
];

/// Returns the first value that `find` finds under one of the usual names of a field. For the client, the
/// first address is preferred to a value before it that is none.
pub(super) fn first<T: AsRef<[u8]>>(field: &Field, find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let names: &[&str] = match field {
        // If there is no field for the client, the list of forwarded addresses contains the client.
        Field::Client => {
            return address(&CLIENTS, &find).or_else(|| address(&FORWARDED, &find));
        }
        Field::User => &USERS,
        Field::Path => &PATHS,
        Field::Forwarded => &FORWARDED,
        Field::Named(name) => return find(name),
    };
    names.iter().find_map(|name| find(name))
}

/// Returns the first address that `find` finds under one of the names, or else the first value.
fn address<T: AsRef<[u8]>>(names: &[&str], find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let mut other = None;
    for value in names.iter().filter_map(|name| find(name)) {
        let text = value.as_ref();
        if is_dotted(text) || is_address(last_of_list(text)) {
            return Some(value);
        }
        other = other.or(Some(value));
    }
    other
}
