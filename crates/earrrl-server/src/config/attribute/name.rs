//! The names of attributes, and the form in which hosts are compared.

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
