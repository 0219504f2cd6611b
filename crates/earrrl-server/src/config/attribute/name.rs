//! The names of attributes, and the form in which hosts are compared; and the values that attributes can have.
//!
//! It also judges which values of conditions no request can have. A condition that can never hold is a limit, an
//! exemption or an override that is silently off, so a value that no request can have is an error, and one
//! that only unusual requests have is a warning.
//!
//! Users, domains, descriptors and a caller's own attributes may be any text, so nothing is known of them.

use std::borrow::Cow;

use axum::http::HeaderName;
use earrrl::internal::nearest;

/// The names of attributes that have no prefix such as `header:`, in the order in which errors list
/// them.
pub const PLAIN: [&str; 5] = ["client", "user", "path", "method", "domain"];

/// Returns an attribute's name as requests have it: `attribute:plan` becomes `plan`, and names of
/// headers become lower case, also that of `attribute:header:NAME`.
///
/// # Errors
/// Returns a sentence about the names that exist if this one is unknown.
pub fn attribute_name(text: &str) -> Result<String, String> {
    let (kind, name) = text.split_once(':').unwrap_or((text, ""));
    match kind {
        "header" if !name.is_empty() => match HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) => Ok(format!("header:{name}")),
            Err(_) => Err(format!("`{}` is no name of a header", name.escape_debug())),
        },
        "attribute" if name.starts_with("header:") => attribute_name(name),
        "attribute" if !name.is_empty() => Ok(name.to_owned()),
        "descriptor" if !name.is_empty() => Ok(format!("descriptor:{name}")),
        _ if PLAIN.contains(&text) => Ok(text.to_owned()),
        _ => Err(unknown(text)),
    }
}

/// Names that other programs use for an attribute, each with the name that this program uses.
const SYNONYMS: [(&str, &str); 8] = [
    ("ip", "client"),
    ("address", "client"),
    ("remote_addr", "client"),
    ("username", "user"),
    ("url", "path"),
    ("uri", "path"),
    ("route", "path"),
    ("verb", "method"),
];

fn unknown(text: &str) -> String {
    let synonym = SYNONYMS
        .iter()
        .find(|(name, _)| text.eq_ignore_ascii_case(name));
    let suggestion: Cow<'_, str> = match synonym.map(|(_, name)| *name).or(nearest(text, PLAIN)) {
        Some(name) => format!("; did you mean `{name}`?").into(),
        None => "".into(),
    };
    format!(
        "unknown attribute `{}`, expected client, user, path, method, domain, header:NAME, \
         attribute:NAME or descriptor:NAME{suggestion}",
        text.escape_debug()
    )
}

/// Returns a host in the form in which it is compared: lower case, without the port and without dots at
/// the end.
pub fn normal_host(host: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let is_port = |port: &[u8]| port.iter().all(u8::is_ascii_digit);
    let colon = host.iter().rposition(|byte| *byte == b':');
    let end = colon
        .filter(|colon| is_port(&host[colon + 1..]))
        .unwrap_or(host.len());
    let dots = host[..end]
        .iter()
        .rev()
        .take_while(|byte| **byte == b'.')
        .count();
    let end = end - dots;
    if end == host.len() && !host.iter().any(u8::is_ascii_uppercase) {
        return host;
    }
    Cow::Owned(host[..end].to_ascii_lowercase())
}

/// The methods of HTTP, WebDAV and caches that are in use; others are doubtful.
const METHODS: [&str; 25] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "CONNECT",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "QUERY",
    "PURGE",
    "BAN",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "REPORT",
    "SEARCH",
    "MKCALENDAR",
    "ACL",
    "LINK",
    "UNLINK",
];

/// The values of `X-Forwarded-Proto` that proxies send.
const PROTOCOLS: [&str; 4] = ["http", "https", "ws", "wss"];

/// Checks that a request can have an attribute with this value, or with one that begins with it.
///
/// # Errors
/// Returns what such values look like if `text` is none. The error does not repeat `text`.
pub(super) fn check(attribute: &str, text: &str) -> Result<(), String> {
    let has = |unusual: fn(char) -> bool| text.contains(unusual);
    match attribute {
        "method" if has(|c| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_')) => {
            Err("expected one method; several are a list, as [\"GET\", \"POST\"]".to_owned())
        }
        "client" if is_nearly_an_address(text) => Err(
            "expected an address or a network, as \"10.0.0.0/8\" or \"2001:db8::/32\"; several are a list"
                .to_owned(),
        ),
        "host" if has(|c| !c.is_ascii_alphanumeric() && !"-._:[]".contains(c)) => Err(
            "expected a host, as \"shop.example\", without scheme and path, and with `xn--` for other letters; \
             several are a list"
                .to_owned(),
        ),
        header if header.starts_with("header:") => {
            if text.trim() == text && !has(char::is_control) {
                return Ok(());
            }
            Err("requests have headers without blanks around them, and without control characters".to_owned())
        }
        _ => Ok(()),
    }
}

/// Returns true for text that has the characters of addresses but is none: a list, a range, a port, or a
/// number that is too large.
fn is_nearly_an_address(text: &str) -> bool {
    let of_addresses = |c: char| c.is_ascii_hexdigit() || ".:,;-/[]% ".contains(c);
    text.contains(|c: char| c.is_ascii_digit())
        && text.contains(['.', ':'])
        && text.chars().all(of_addresses)
}

/// Returns true for text with which an address can begin.
pub(super) fn begins_address(text: &str) -> bool {
    let digits = |part: &str| part.len() <= 3 && part.bytes().all(|byte| byte.is_ascii_digit());
    let hexadecimal =
        |part: &str| part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split('.').all(digits) || text.split(':').all(hexadecimal)
}

/// Returns why hardly any request has an attribute with this value, or with one that begins with it.
pub(super) fn doubt(attribute: &str, text: &str, is_prefix: bool) -> Option<String> {
    let is_any_of = |known: &[&str]| {
        known
            .iter()
            .any(|one| *one == text || (is_prefix && one.starts_with(text)))
    };
    match attribute {
        _ if text.is_empty() => None,
        "method" if !is_any_of(&METHODS) => {
            let suggestion = nearest(text, METHODS).map(|name| format!("; did you mean `{name}`?"));
            Some(format!(
                "that is no usual method{}",
                suggestion.unwrap_or_default()
            ))
        }
        "proto" if !is_any_of(&PROTOCOLS) => Some(format!("proxies send {}", PROTOCOLS.join(", "))),
        "client" if !is_prefix || !begins_address(text) => Some(
            "a client is an address; only callers that name their clients otherwise have this one"
                .to_owned(),
        ),
        "path" if text.contains(",/") || text.contains("|/") || text.contains(", /") => {
            Some("several paths are a list, as [\"/login\", \"/password\"]".to_owned())
        }
        _ => None,
    }
}
