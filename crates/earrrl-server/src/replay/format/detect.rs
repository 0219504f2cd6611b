//! Which format a log is in, from its first lines.

use std::time::UNIX_EPOCH;

use super::{Format, Hints, Parser, csv};

/// Lines that are looked at.
const LINES: usize = 200;

/// The format that most of the first lines are in, if any are.
pub(crate) fn detect(start: &[u8], hints: &Hints) -> Option<Format> {
    let lines = || {
        let lines =
            start.split(|&b| b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        lines.filter(|line| !line.trim_ascii().is_empty()).take(LINES)
    };
    if csv::is_header(lines().next()?, hints) {
        return Some(Format::Csv);
    }
    // A line behind a virtual host passes as a combined one, too, so that goes behind.
    let candidates = [Format::Vhost, Format::Combined, Format::Json, Format::Sshd];
    let fitting = |format| lines().filter(|line| fits(line, format, hints)).count();
    let counts = candidates.map(|format| (fitting(format), format));
    // The last maximum of the reversed is the first of equals.
    let (count, format) = counts.into_iter().rev().max_by_key(|&(count, _)| count)?;
    if count == 0 {
        return None;
    }
    let with_agent = || lines().any(|line| line.iter().filter(|&&b| b == b'"').count() >= 6);
    Some(if format == Format::Combined && !with_agent() { Format::Common } else { format })
}

/// Whether a line looks like one of this format.
fn fits(line: &[u8], format: Format, hints: &Hints) -> bool {
    if format == Format::Vhost {
        // Behind the client stands the identity, which nobody uses: `-`.
        let mut words = line.split(|&b| b == b' ').skip(1);
        if words.next() == Some(b"-") || words.next() != Some(b"-") {
            return false;
        }
    }
    Parser::new(format, hints, UNIX_EPOCH + std::time::Duration::from_secs(1 << 32))
        .parse(line)
        .is_ok_and(|record| record.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_the_first_lines() {
        let common = r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;
        let user = r#"192.0.2.7 - ann [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;
        let combined = format!(r#"{common} "-" "curl""#);
        let cases = [
            (common.to_owned(), Some(Format::Common)),
            (user.to_owned(), Some(Format::Common)),
            (combined.clone(), Some(Format::Combined)),
            (format!("\"{combined}\""), Some(Format::Combined)),
            (format!("example.org:80 {common}"), Some(Format::Vhost)),
            (format!("example.org {user}"), Some(Format::Vhost)),
            (r#"{"ts":1,"client_ip":"192.0.2.7"}"#.into(), Some(Format::Json)),
            ("time,key\n1,a".into(), Some(Format::Csv)),
            ("key,time,cost\na,1,2".into(), Some(Format::Csv)),
            ("Dec 10 06:55:46 h sshd[1]: from 192.0.2.7".into(), Some(Format::Sshd)),
            (format!("half a line\n\r\n{common}\n{common}\n"), Some(Format::Common)),
            ("nothing of the kind".into(), None),
            ("\0\u{1}\u{2}".into(), None),
            (String::new(), None),
        ];
        for (text, format) in cases {
            assert_eq!(detect(text.as_bytes(), &Hints::default()), format, "{text}");
        }
    }
}
