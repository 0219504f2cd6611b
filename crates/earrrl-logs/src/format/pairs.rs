//! Lines of names and values: logfmt, and labelled tab-separated values.
//!
//! - Logfmt, as Heroku's router and many other programs write it: `2012-10-11T03:47:20+00:00 heroku[router]:
//!   at=info method=GET path="/" host=app.example.org fwd="192.0.2.7" dyno=web.1 connect=1ms status=200
//!   bytes=13`. The time is in one of the pairs, or at the start of the line.
//! - LTSV, which has tabs in place of `|`: `time:[17/May/2015:10:05:03 +0000]|host:192.0.2.7|status:200`.
//!   Servers escape tabs in values, so that a client cannot add a pair. The labels are those of ltsv.org, where
//!   `host` is the client.

use std::borrow::Cow;

/// Returns the pairs of a line of LTSV; none if it has no tab.
pub(super) fn ltsv(line: &[u8]) -> impl Iterator<Item = (&[u8], Cow<'_, [u8]>)> {
    let line = if line.contains(&b'\t') { line } else { b"" };
    line.split(|&byte| byte == b'\t').filter_map(|pair| {
        let at = memchr::memchr(b':', pair)?;
        Some((&pair[..at], Cow::Borrowed(&pair[at + 1..])))
    })
}

/// Returns the pairs of a line of logfmt, without the quotes around the values. A name starts only after a
/// blank, so that a value without blanks cannot contain a pair.
pub(super) fn logfmt(line: &[u8]) -> impl Iterator<Item = (&[u8], Cow<'_, [u8]>)> {
    let mut rest = line;
    std::iter::from_fn(move || {
        loop {
            rest = rest.trim_ascii_start();
            let end = memchr::memchr2(b'=', b' ', rest)?;
            let name = &rest[..end];
            if rest[end] == b' ' || name.is_empty() {
                rest = &rest[end + 1..];
                continue;
            }
            let (value, after) = value(&rest[end + 1..]);
            rest = after;
            return Some((name, Cow::Borrowed(value)));
        }
    })
}

/// Splits a text after the value at its start: a word, or a text in quotes, in which a backslash
/// escapes a quote. The value is returned without its quotes.
fn value(text: &[u8]) -> (&[u8], &[u8]) {
    let Some(inner) = text.strip_prefix(b"\"") else {
        return text.split_at(memchr::memchr(b' ', text).unwrap_or(text.len()));
    };
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'"', b'\\', &inner[at.min(inner.len())..]) {
        at += found;
        if inner[at] == b'"' {
            return (&inner[..at], &inner[at + 1..]);
        }
        at += 2;
    }
    (inner, b"")
}

#[cfg(test)]
mod tests {
    use crate::format::{Format, last_request};

    const PAIRS: &str = r#"at=info method=GET path="/a?b=c" host=app.example.org fwd="9.9.9.9, 192.0.2.7" dyno=web.1 connect=1ms status=200 note="x \" client_ip=9.9.9.9 ""#;

    #[test]
    fn heroku() {
        for start in [
            "2012-10-11T03:47:20+00:00 heroku[router]:",
            "<158>1 2012-10-11T03:47:20+00:00 host heroku router -",
        ] {
            let found = last_request(&format!("{start} {PAIRS}"), &["client", "path", "status"]);
            assert_eq!(
                found,
                (Format::Logfmt, "1349927240 192.0.2.7 /a 200".into()),
                "{start}"
            );
        }
    }

    #[test]
    fn a_field_with_the_time() {
        let line = format!("ts=2012-10-11T03:47:20.5Z level=info {PAIRS} client_ip=192.0.2.8");
        let found = last_request(&line, &["client", "level", "nothing"]);
        assert_eq!(
            found,
            (Format::Logfmt, "1349927240.5 192.0.2.8 info -".into())
        );
    }

    #[test]
    fn labels() {
        let line = "time:[17/May/2015:12:05:03 +0200]\thost:192.0.2.7\tforwardedfor:9.9.9.9, 192.0.2.8\treq:GET /a?b=host:9.9.9.9 HTTP/1.1\tstatus:200\tua:x \\thost:9.9.9.9 \tuser:ann";
        let found = last_request(line, &["client", "forwarded_for", "path", "status", "user"]);
        assert_eq!(
            found,
            (
                Format::Ltsv,
                "1431857103 192.0.2.7 192.0.2.8 /a 200 ann".into()
            )
        );
        let epoch = "time:1431857103.5\tremote_addr:192.0.2.7\turi:/a";
        assert_eq!(
            last_request(epoch, &["client", "path"]).1,
            "1431857103.5 192.0.2.7 /a"
        );
    }
}
