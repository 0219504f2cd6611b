//! Problem details (RFC 9457) of requests that were not let through.

use bytes::Bytes;
use earrrl::{Limit, Policy};
use http::{HeaderValue, StatusCode};

/// `application/problem+json`.
pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// What kind of problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The client has used what the rule allows.
    QuotaExceeded,
    /// The client keeps on over the limit, and every attempt counts: a strict rule.
    AbnormalUsage,
    /// No more than the status says.
    Blank,
}

impl Kind {
    /// The kind for a request that this limit denied.
    pub fn of(limit: &Limit) -> Self {
        match limit.policy() {
            Policy::Strict => Self::AbnormalUsage,
            Policy::Leaky => Self::QuotaExceeded,
        }
    }

    /// The problem's `type`.
    pub const fn uri(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::AbnormalUsage => {
                "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
            }
            Self::Blank => "about:blank",
        }
    }
}

/// Writes the members of a problem, without braces, so that others can follow:
/// `"type":…,"title":…,"status":429,"violated-policies":["login"]`. Of no policies, the last one is
/// left out.
///
/// ```
/// use earrrl_tower::problem::{Kind, write_members};
/// use http::StatusCode;
/// let mut json = Vec::new();
/// write_members(Kind::Blank, StatusCode::SERVICE_UNAVAILABLE, [], &mut json);
/// assert_eq!(json, br#""type":"about:blank","title":"Service Unavailable","status":503"#);
/// ```
pub fn write_members<'a>(
    kind: Kind,
    status: StatusCode,
    violated: impl IntoIterator<Item = &'a str>,
    json: &mut Vec<u8>,
) {
    json.extend_from_slice(b"\"type\":\"");
    json.extend_from_slice(kind.uri().as_bytes());
    json.extend_from_slice(b"\",\"title\":\"");
    json.extend_from_slice(status.canonical_reason().unwrap_or("Error").as_bytes());
    json.extend_from_slice(b"\",\"status\":");
    json.extend_from_slice(itoa::Buffer::new().format(status.as_u16()).as_bytes());
    let mut names = violated.into_iter().peekable();
    if names.peek().is_none() {
        return;
    }
    json.extend_from_slice(b",\"violated-policies\":");
    write_names(names, json);
}

/// A problem as a response's body.
pub(crate) fn body<'a>(
    kind: Kind,
    status: StatusCode,
    violated: impl IntoIterator<Item = &'a str>,
) -> Bytes {
    let mut json = vec![b'{'];
    write_members(kind, status, violated, &mut json);
    json.push(b'}');
    json.into()
}

/// Writes names of rules as a JSON array. A name, or a rule's text, has no character that JSON would
/// escape; of anything else those are dropped.
pub fn write_names<'a>(names: impl IntoIterator<Item = &'a str>, json: &mut Vec<u8>) {
    json.push(b'[');
    for (place, name) in names.into_iter().enumerate() {
        if place > 0 {
            json.push(b',');
        }
        json.push(b'"');
        json.extend(name.bytes().filter(|byte| !matches!(byte, b'"' | b'\\' | ..b' ')));
        json.push(b'"');
    }
    json.push(b']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use earrrl::Rule;

    #[test]
    fn a_denial_names_the_rules_it_violated() {
        let rule: Rule = "recent-average 1/s half-life=10s".parse().unwrap();
        let mut json = Vec::new();
        let status = StatusCode::TOO_MANY_REQUESTS;
        write_members(Kind::of(rule.limit()), status, ["login", "per\"ip\\\n"], &mut json);
        assert_eq!(
            String::from_utf8(json).unwrap(),
            "\"type\":\"https://iana.org/assignments/http-problem-types#abnormal-usage-detected\",\
             \"title\":\"Too Many Requests\",\"status\":429,\
             \"violated-policies\":[\"login\",\"perip\"]"
        );
    }
}
