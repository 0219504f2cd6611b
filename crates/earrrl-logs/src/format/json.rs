//! Logs with one JSON object on each line, as nginx, Caddy and most log collectors write.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::envelope::Message;
use crate::line::Skip;
use crate::line::time::{self, Stamp};

/// The members of a JSON object, with values that are not parsed yet.
pub(super) struct JsonMembers<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// A JSON string, which is borrowed unless it contains escapes.
#[derive(Deserialize)]
struct JsonString<'a>(#[serde(borrow)] Cow<'a, str>);

/// Returns the members of the object on a line.
///
/// Invalid bytes are repaired in `mended`, so that a client cannot hide its request by sending them: nginx without
/// `escape=json` writes `\x22`, and copies bytes that are not UTF-8.
pub(super) fn members<'a>(line: &'a [u8], mended: &'a mut String) -> Result<JsonMembers<'a>, Skip> {
    serde_json::from_slice(line).or_else(|_| {
        *mended = String::from_utf8_lossy(line).replace("\\x", "\\u00");
        serde_json::from_str(mended).map_err(|_| Skip::Malformed)
    })
}

/// Removes the text before the JSON object in Caddy's console format: time, level, logger and
/// message, with tabs between them.
pub(super) fn without_console(message: Message<'_>) -> Message<'_> {
    let text = message.text;
    if text.first() == Some(&b'{') {
        return message;
    }
    // The server itself writes the text before the object; the client's values are inside the
    // object.
    let Some(at) = memchr::memmem::find(text, b"\t{") else {
        return message;
    };
    let stamp = text.split(|&b| b == b'\t').next();
    let stamp = stamp.and_then(|stamp| Stamp::of(time::parse_any, stamp));
    Message {
        time: stamp.or(message.time),
        text: &text[at + 1..],
        ..message
    }
}

impl<'de> Deserialize<'de> for JsonMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonMembersVisitor;
        impl<'de> Visitor<'de> for JsonMembersVisitor {
            type Value = JsonMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(24);
                while let Some((JsonString(name), value)) = map.next_entry()? {
                    members.push((name, value));
                }
                Ok(JsonMembers(members))
            }
        }
        deserializer.deserialize_map(JsonMembersVisitor)
    }
}

impl<'a> JsonMembers<'a> {
    /// Returns the text of the member at a path with dots. If several members have one name, the last
    /// is used, as in most programs. A member whose own name contains the dots takes precedence over a
    /// nested one.
    pub(super) fn find(&self, path: &str) -> Option<Cow<'a, [u8]>> {
        let member = |name: &str| {
            let Self(members) = self;
            let found = members.iter().rfind(|(known, _)| known == name);
            found.map(|&(_, value)| value)
        };
        if let Some(found) = member(path).and_then(text) {
            return Some(match found {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            });
        }
        path.match_indices('.').find_map(|(dot, _)| {
            let inner: Self = serde_json::from_str(member(&path[..dot])?.get()).ok()?;
            inner.find(&path[dot + 1..])
        })
    }
}

/// The greatest number of fields that are listed, and the greatest depth of nested fields.
const MAX_FIELDS: usize = 40;
const DEPTH: usize = 3;

/// Returns the names and values of a line's fields, with dotted names for nested ones; `None` if
/// the line is not a JSON object.
pub(super) fn fields(line: &[u8]) -> Option<Vec<(String, String)>> {
    fn list(
        object: &JsonMembers<'_>,
        prefix: &str,
        depth: usize,
        found: &mut Vec<(String, String)>,
    ) {
        for (name, value) in &object.0 {
            let name = format!("{prefix}{name}");
            match serde_json::from_str::<JsonMembers<'_>>(value.get()) {
                Ok(inner) if depth > 1 => list(&inner, &format!("{name}."), depth - 1, found),
                _ if found.len() < MAX_FIELDS => {
                    found.push((name, text(value).unwrap_or_default().into_owned()));
                }
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    list(&serde_json::from_slice(line).ok()?, "", DEPTH, &mut found);
    Some(found)
}

/// Returns the text of a string, a number or a truth value. Of an array it returns the text of the
/// last element: each proxy appends the address of its peer, and the client can forge the elements
/// before.
fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    let raw = value.get();
    match raw.as_bytes().first()? {
        b'"' => serde_json::from_str::<JsonString<'_>>(raw)
            .ok()
            .map(|JsonString(text)| text),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
            items
                .last()
                .filter(|item| !item.get().starts_with('['))
                .copied()
                .and_then(text)
        }
        b'{' | b'n' => None,
        _ => Some(Cow::Borrowed(raw)),
    }
}

#[cfg(test)]
mod tests {
    use crate::envelope::Message;
    use crate::format::named::{Notation, Parser};
    use crate::format::{Field, Hints};
    use crate::line::Skip;

    const NGINX: &str = r#"{"time":"2015-05-17T10:05:03+00:00","remote_addr":"192.0.2.7","remote_user":"-","request":"GET /a?b HTTP/1.1","status":200}"#;
    const CADDY: &str = r#"{"level":"info","ts":1431857103.5241025,"request":{"remote_ip":"192.0.2.1","client_ip":"192.0.2.7","method":"GET","uri":"/a?b","headers":{"X-Key":["k1"]}},"user_id":"ann"}"#;

    fn get(line: &str, hints: &Hints, name: &str) -> Result<(u64, Option<String>), Skip> {
        let mut parser = Parser::new(Notation::Json, hints);
        let record = parser.parse(Message::plain(line.as_bytes()))?;
        let (time, record) = record.unwrap();
        let value = record
            .get(&Field::new(name))
            .map(|v| String::from_utf8(v.to_vec()).unwrap());
        Ok((time.nanos, value))
    }

    #[test]
    fn usual_fields_are_found() {
        let cases = [
            (NGINX, "client", Some("192.0.2.7")),
            (NGINX, "user", None),
            (NGINX, "path", Some("/a")),
            (NGINX, "status", Some("200")),
            (CADDY, "client", Some("192.0.2.7")),
            (CADDY, "user", Some("ann")),
            (CADDY, "path", Some("/a")),
            (CADDY, "request.headers.X-Key", Some("k1")),
            (CADDY, "request.method", Some("GET")),
            (CADDY, "request", None),
            (CADDY, "request.none.deeper", None),
        ];
        for (line, name, value) in cases {
            let (_, found) = get(line, &Hints::default(), name).unwrap();
            assert_eq!(found.as_deref(), value, "{name}");
        }
    }

    #[test]
    fn times_are_exact() {
        let time = |line| get(line, &Hints::default(), "client").map(|(time, _)| time);
        assert_eq!(time(NGINX), Ok(1_431_857_103_000_000_000));
        assert_eq!(time(CADDY), Ok(1_431_857_103_524_102_500));
        assert_eq!(
            time(r#"{"msec":"1431857103.123456789"}"#),
            Ok(1_431_857_103_123_456_789)
        );
        assert_eq!(
            time(r#"{"time_local":"17/May/2015:10:05:03 +0000"}"#),
            time(NGINX)
        );
        assert_eq!(time(r#"{"time":null,"ts":1431857103}"#), time(NGINX));
        assert_eq!(time(r#"{"time":"-","ts":1431857103}"#), time(NGINX));
        assert_eq!(time(r#"{"time":"yesterday"}"#), Err(Skip::Time));
        assert_eq!(time(r#"["time"]"#), Err(Skip::Malformed));
    }

    #[test]
    fn an_empty_field_hides_no_other() {
        for empty in ["\"\"", "\"-\"", "null"] {
            let line =
                format!(r#"{{"ts":1431857103,"client_ip":{empty},"remote_addr":"192.0.2.7"}}"#);
            let found = get(&line, &Hints::default(), "client");
            assert_eq!(
                found,
                Ok((1_431_857_103_000_000_000, Some("192.0.2.7".into())))
            );
        }
    }

    #[test]
    fn a_value_that_is_no_address_wins_over_none_that_is() {
        for (line, client) in [
            // Zeek's log of SSH, in which the client chooses its banner.
            (
                r#"{"ts":1431857103,"client":"SSH-2.0-Go","server":"SSH-2.0-x","id.orig_h":"192.0.2.7"}"#,
                "192.0.2.7",
            ),
            (
                r#"{"ts":1431857103,"client":"10.9.9.9","id.orig_h":"192.0.2.7"}"#,
                "192.0.2.7",
            ),
            (
                r#"{"ts":1431857103,"remote":"worker","req":{"remoteAddress":"2001:db8::1"}}"#,
                "2001:db8::1",
            ),
            (
                r#"{"ts":1431857103,"client_ip":"unknown","remote_addr":"192.0.2.7:4711"}"#,
                "192.0.2.7:4711",
            ),
            (
                r#"{"ts":1431857103,"client":"host.example","xff":"9.9.9.9"}"#,
                "host.example",
            ),
        ] {
            let (_, found) = get(line, &Hints::default(), "client").unwrap();
            assert_eq!(found.as_deref(), Some(client), "{line}");
        }
    }

    #[test]
    fn fields_can_be_named() {
        let hints = Hints {
            time_field: Some("a.t".into()),
            key_field: Some("a.b.c".into()),
            ..Hints::default()
        };
        let line = r#"{"a.t":7,"a":{"b":{"c":"x"}},"client_ip":"192.0.2.7","time":1431857103}"#;
        assert_eq!(
            get(line, &hints, "client"),
            Ok((7_000_000_000, Some("x".into())))
        );
    }

    #[test]
    fn products_name_their_fields() {
        let cases = [
            // A line in the format of Traefik.
            r#"{"ClientAddr":"192.0.2.7:4711","ClientHost":"192.0.2.7","RequestPath":"/a?b","StartUTC":"2015-05-17T10:05:03Z","time":"2015-05-17T10:05:03Z"}"#,
            // A line in the format of Cloudflare.
            r#"{"ClientIP":"192.0.2.7","ClientRequestURI":"/a?b","EdgeStartTimestamp":1431857103000000000}"#,
            r#"{"ClientIP":"192.0.2.7","ClientRequestPath":"/a","EdgeStartTimestamp":"2015-05-17T10:05:03Z"}"#,
            // A line in the format of Google Cloud.
            r#"{"httpRequest":{"remoteIp":"192.0.2.7","requestUrl":"https://example.org/a?b"},"timestamp":"2015-05-17T10:05:03.0Z"}"#,
            // A line in the format of Kong.
            r#"{"client_ip":"192.0.2.7","request":{"uri":"/a?b","method":"GET"},"started_at":1431857103000}"#,
            // A line in the format of API Gateway.
            r#"{"ip":"192.0.2.7","requestTime":"17/May/2015:10:05:03 +0000","resourcePath":"/a"}"#,
            r#"{"sourceIp":"192.0.2.7","requestTimeEpoch":"1431857103000","path":"/a"}"#,
            // A line in the format of Envoy.
            r#"{"start_time":"2015-05-17T10:05:03Z","downstream_remote_address":"192.0.2.7:4711","path":"/a"}"#,
            // A line in the format of AWS WAF.
            r#"{"timestamp":1431857103000,"httpRequest":{"clientIp":"192.0.2.7","uri":"/a"}}"#,
        ];
        for line in cases {
            let (time, path) = get(line, &Hints::default(), "path").unwrap();
            assert_eq!(
                (time, path.as_deref()),
                (1_431_857_103_000_000_000, Some("/a")),
                "{line}"
            );
            let (_, client) = get(line, &Hints::default(), "client").unwrap();
            assert!(client.unwrap().starts_with("192.0.2.7"), "{line}");
        }
    }

    #[test]
    fn caddys_console() {
        let request = r#"{"request": {"client_ip": "192.0.2.7", "uri": "/a\t{\"x\":1}", "method": "GET"}, "status": 200}"#;
        for (stamp, level) in [
            ("2015/05/17 10:05:03.500", "INFO"),
            ("1431857103.5", "\x1b[34mINFO\x1b[0m"),
        ] {
            let line =
                format!("{stamp}\t{level}\thttp.log.access.log0\thandled request\t{request}");
            let (time, client) = get(&line, &Hints::default(), "client").unwrap();
            assert_eq!(
                (time, client.as_deref()),
                (1_431_857_103_500_000_000, Some("192.0.2.7"))
            );
        }
        let (_, log) = crate::format::last_request(
            &format!("2015/05/17 10:05:03.500\tINFO\thttp\thandled request\t{request}"),
            &["client"],
        );
        assert_eq!(log, "1431857103.5 192.0.2.7");
        assert_eq!(
            get(
                "2015/05/17 10:05:03\tINFO\tstarted",
                &Hints::default(),
                "client"
            ),
            Err(Skip::Malformed)
        );
    }

    #[test]
    fn a_client_cannot_spoil_its_line() {
        let line = b"{\"ts\":1431857103,\"client_ip\":\"192.0.2.7\",\"uri\":\"/\\x22\xff\"}";
        let mut parser = Parser::new(Notation::Json, &Hints::default());
        let (_, record) = parser.parse(Message::plain(line)).ok().unwrap().unwrap();
        assert_eq!(
            record.get(&Field::Client).as_deref(),
            Some(&b"192.0.2.7"[..])
        );
        let deep = format!(
            "{{\"ts\":1431857103,\"ip\":{}1{}}}",
            "[".repeat(60_000),
            "]".repeat(60_000)
        );
        assert_eq!(
            get(&deep, &Hints::default(), "client"),
            Ok((1_431_857_103_000_000_000, None))
        );
    }
}
