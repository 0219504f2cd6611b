//! Problem details (RFC 9457) of denied requests.

use bytes::Bytes;
use earrrl::{Limit, Policy};
use http::{HeaderValue, StatusCode};

/// The value of `Content-Type`, `application/problem+json`.
pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The type of a problem.
///
/// ```
/// use earrrl::Rule;
/// use earrrl_tower::problem::Kind;
/// let rule: Rule = "gcra 1/s burst=5".parse()?;
/// let kind = Kind::of(rule.limit());
/// assert_eq!(kind.uri(), "https://iana.org/assignments/http-problem-types#quota-exceeded");
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The client has used its quota.
    QuotaExceeded,
    /// The client is over the limit of a strict rule, under which denied requests count too.
    AbnormalUsage,
    /// The problem has no meaning beyond that of its status.
    Blank,
}

impl Kind {
    /// Returns the type of the problem for a request that this limit denied.
    pub fn of(limit: &Limit) -> Self {
        match limit.policy() {
            Policy::Strict => Self::AbnormalUsage,
            Policy::Leaky => Self::QuotaExceeded,
        }
    }

    /// Returns the URI that the problem's member `type` contains.
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

/// Writes the members of a problem without braces, so that other members can follow:
/// `"type":…,"title":…,"status":429,"violated-policies":["login"]`. `violated-policies` is left out
/// if no policies were violated.
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

/// Returns a problem as the body of a response.
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

/// Writes names of rules as a JSON array. Characters that JSON would have to escape are left out;
/// valid names and texts of rules contain none.
///
/// ```
/// let mut json = Vec::new();
/// earrrl_tower::problem::write_names(["login", "per-address"], &mut json);
/// assert_eq!(json, br#"["login","per-address"]"#);
/// ```
pub fn write_names<'a>(names: impl IntoIterator<Item = &'a str>, json: &mut Vec<u8>) {
    json.push(b'[');
    for (place, name) in names.into_iter().enumerate() {
        if place > 0 {
            json.push(b',');
        }
        json.push(b'"');
        json.extend(
            name.bytes()
                .filter(|byte| !matches!(byte, b'"' | b'\\' | ..b' ')),
        );
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
        write_members(
            Kind::of(rule.limit()),
            status,
            ["login", "per\"ip\\\n"],
            &mut json,
        );
        assert_eq!(
            String::from_utf8(json).unwrap(),
            "\"type\":\"https://iana.org/assignments/http-problem-types#abnormal-usage-detected\",\
             \"title\":\"Too Many Requests\",\"status\":429,\
             \"violated-policies\":[\"login\",\"perip\"]"
        );
    }
}
