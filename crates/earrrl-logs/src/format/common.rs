//! The common and the combined log format of web servers, with or without a virtual host in front.
//!
//! `host ident user [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 3279 "referrer" "agent"`
//!
//! The list of X-Forwarded-For may stand in place of the host, or behind the agent, as in the
//! format that nginx's example configuration calls `main`.

use std::cell::OnceCell;

use super::field::{Field, path_of, target};
use crate::line::Skip;
use crate::line::time;
use crate::line::time::{CommonTime, Stamp};

/// The names of the fields in the common and the combined log format.
pub(super) const FIELDS: [&str; 17] = [
    "client",
    "user",
    "path",
    "method",
    "request",
    "status",
    "bytes",
    "referer",
    "agent",
    "ident",
    "host",
    "vhost",
    "referrer",
    "user_agent",
    "forwarded_for",
    "x_forwarded_for",
    "http_x_forwarded_for",
];

/// The most texts in quotes behind the time: the request, the referrer, the agent and the list of X-Forwarded-For.
const QUOTED: usize = 4;

/// Reads lines in the common or the combined log format. A line must contain the client and the
/// time; other fields are parsed only when they are used.
#[derive(Clone)]
pub(super) struct Parser {
    vhost: bool,
    time: CommonTime,
}

/// A line that is parsed up to its time.
pub(super) struct Line<'a> {
    host: &'a [u8],
    client: &'a [u8],
    /// The identity and the user: the text between the client and the `[`.
    who: &'a [u8],
    /// The text behind the time.
    rest: &'a [u8],
    /// The texts of `rest` in quotes, once one of them is asked for.
    quoted: OnceCell<Quoted<'a>>,
}

/// The texts in quotes behind the time.
#[derive(Default)]
struct Quoted<'a> {
    texts: [Option<&'a [u8]>; QUOTED],
    /// The text behind the first of them.
    behind_request: &'a [u8],
}

impl Parser {
    /// Creates a parser. If `vhost` is true, each line starts with the virtual host.
    pub(super) fn new(vhost: bool) -> Self {
        Self {
            vhost,
            time: CommonTime::default(),
        }
    }

    /// Parses a line up to its time.
    #[inline]
    pub(super) fn parse<'a>(&mut self, line: &'a [u8]) -> Result<(Stamp, Line<'a>), Skip> {
        let mut line = line;
        if line.first() == Some(&b'"') {
            line = unquoted(line);
        }
        let mut host = &b""[..];
        if self.vhost {
            (host, line) = word(line)?;
            if host.ends_with(b",") {
                return Err(Skip::Malformed);
            }
        }
        let (client, line) = host_or_list(line)?;
        let client = client.strip_suffix(b"\"").unwrap_or(client);
        if let Some((b"- - [", stamp)) = line.split_at_checked(5)
            && stamp.get(26..29) == Some(b"] \"")
            && let Some(time) = self.time.parse(stamp)
        {
            let fields = Line {
                host,
                client,
                who: &line[..3],
                rest: &stamp[27..],
                quoted: OnceCell::new(),
            };
            return Ok((Stamp::utc(time), fields));
        }
        let (start, end) = time_before_request(line).map_or_else(|| only_time(line), Ok)?;
        let who = &line[..start - 1];
        if !is_identity_and_user(who) {
            return Err(Skip::Malformed);
        }
        let time = match self.time.parse(&line[start + 1..]) {
            Some(time) => Stamp::utc(time),
            None => Stamp::of(time::parse_recent, &line[start + 1..end]).ok_or(Skip::Time)?,
        };
        let fields = Line {
            host,
            client,
            who,
            rest: &line[end + 1..],
            quoted: OnceCell::new(),
        };
        Ok((time, fields))
    }
}

impl<'a> Line<'a> {
    /// Returns the value of a field; `None` if it is missing, empty or `-`.
    #[inline]
    pub(super) fn get(&self, field: &Field) -> Option<&'a [u8]> {
        let value = match field {
            Field::Client => self.client,
            Field::User => self.user(),
            Field::Path => path_of(target(self.quoted(0)?)?),
            Field::Forwarded => self.quoted(3)?,
            Field::Named(name) => self.named(name)?,
        };
        (value != b"-" && !value.is_empty()).then_some(value)
    }

    /// Returns the value of the field that this format calls `name`.
    fn named(&self, name: &str) -> Option<&'a [u8]> {
        match name {
            "host" | "vhost" => Some(self.host),
            "ident" => self.who.split(|&b| b == b' ').next(),
            "request" => self.quoted(0),
            "method" => self.quoted(0)?.split(|&b| b == b' ').next(),
            "referer" | "referrer" => self.quoted(1),
            "agent" | "user_agent" => self.quoted(2),
            "status" => self.after_request(0),
            // A size of `-` means that no bytes were sent.
            "bytes" => self
                .after_request(1)
                .map(|size| if size == b"-" { b"0" } else { size }),
            _ => None,
        }
    }

    /// Returns the user's name, which may contain blanks, unlike the identity before it.
    fn user(&self) -> &'a [u8] {
        memchr::memchr(b' ', self.who).map_or(b"", |at| &self.who[at + 1..])
    }

    /// Returns the text in the `number`th pair of quotes behind the time, counted from 0.
    fn quoted(&self, number: usize) -> Option<&'a [u8]> {
        self.all_quoted().texts[number]
    }

    /// Returns the `number`th word behind the request, counted from 0.
    fn after_request(&self, number: usize) -> Option<&'a [u8]> {
        let words = self.all_quoted().behind_request.split(|&b| b == b' ');
        words.filter(|word| !word.is_empty()).nth(number)
    }

    /// Returns the texts in quotes behind the time. They are found together, since each begins behind the one before.
    fn all_quoted(&self) -> &Quoted<'a> {
        self.quoted.get_or_init(|| {
            let mut all = Quoted::default();
            let mut rest = self.rest;
            for (number, found) in all.texts.iter_mut().enumerate() {
                let Some((text, behind)) = quotes(rest) else {
                    break;
                };
                *found = Some(text);
                rest = behind;
                if number == 0 {
                    all.behind_request = behind;
                }
            }
            all
        })
    }
}

/// Removes quotes that an exporter has put around the whole line, or around its first word.
///
/// The first word keeps its closing quote. Quotes inside a quoted line may be doubled.
#[cold]
fn unquoted(line: &[u8]) -> &[u8] {
    if word(line).is_ok_and(|(first, _)| first.len() > 1 && first.ends_with(b"\"")) {
        return &line[1..];
    }
    let inner = line
        .strip_prefix(b"\"")
        .and_then(|line| line.trim_ascii_end().strip_suffix(b"\""));
    inner.unwrap_or(line)
}

/// Returns the places of the brackets around the time if the quoted request follows directly behind
/// them.
///
/// The client chooses the name of the user before the time, which may look like a time in brackets.
/// Servers escape quotes in that name, so the time is in the last brackets before the first quote.
fn time_before_request(line: &[u8]) -> Option<(usize, usize)> {
    let end = first_quote(line)?.checked_sub(2)?;
    if &line[end..end + 2] != b"] " {
        return None;
    }
    let start = memchr::memrchr(b'[', &line[..end])?;
    line[..start].ends_with(b" ").then_some((start, end))
}

/// Returns the places of the only brackets before the first quote with a time in them.
///
/// # Errors
/// Returns that the line is ambiguous if there are several, since the client may have sent one of
/// them, and that the time is unusable if there is none.
fn only_time(line: &[u8]) -> Result<(usize, usize), Skip> {
    let head = &line[..first_quote(line).unwrap_or(line.len())];
    let mut skip = Skip::Malformed;
    let mut found = None;
    for blank in memchr::memmem::find_iter(head, b" [") {
        let start = blank + 1;
        let Some(len) = memchr::memchr(b']', &head[start..]) else {
            break;
        };
        if time::parse_recent(&head[start + 1..start + len]).is_none() {
            skip = Skip::Time;
        } else if found.replace((start, start + len)).is_some() {
            return Err(Skip::Ambiguous);
        }
    }
    found.ok_or(skip)
}

/// Returns the place of the first quote that is not escaped with a backslash. Apache writes an
/// empty user as two quotes, which are passed over.
fn first_quote(line: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', line.get(from..)?)?;
        from = match &line[at..] {
            [b'\\', ..] => at + 2,
            [b'"', b'"', b' ', b'[', ..] => at + 3,
            _ => return Some(at),
        };
    }
}

/// Returns true if the text is an identity and a user: two words, or anything if the identity is
/// `-`, since a user's name may contain blanks, also at its start.
///
/// For any other text, the first word on the line is not the client but, for example, a virtual
/// host, a time or the owner of a bucket.
fn is_identity_and_user(who: &[u8]) -> bool {
    let mut words = who.split(|&b| b == b' ');
    match (words.next(), words.next()) {
        (Some(b"-"), Some(_)) => true,
        (Some(identity), Some(user)) => {
            !identity.is_empty() && !user.is_empty() && words.next().is_none()
        }
        _ => false,
    }
}

/// Splits a line after the client, which is one word or a list of addresses with commas between
/// them.
#[inline]
fn host_or_list(line: &[u8]) -> Result<(&[u8], &[u8]), Skip> {
    let (first, mut rest) = word(line)?;
    let mut end = first.len();
    while line[end - 1] == b',' {
        let (next, behind) = word(rest)?;
        end += 1 + next.len();
        rest = behind;
    }
    Ok((&line[..end], rest))
}

/// Splits a line at its first blank. Returns an error if the word before the blank would be empty.
#[inline]
fn word(line: &[u8]) -> Result<(&[u8], &[u8]), Skip> {
    match memchr::memchr(b' ', line) {
        Some(at) if at > 0 => Ok((&line[..at], &line[at + 1..])),
        _ => Err(Skip::Malformed),
    }
}

/// Returns the text in the first pair of quotes, and the text behind that pair. A quote after a
/// backslash does not end the text.
fn quotes(text: &[u8]) -> Option<(&[u8], &[u8])> {
    // Behind the first two, they follow one another.
    let open = match text {
        [b' ', b'"', ..] => 1,
        _ => memchr::memchr(b'"', text)?,
    };
    // A line that was itself put in quotes may have doubled quotes: `""GET / HTTP/1.1""`.
    let doubled = matches!(text[open + 1..], [b'"', next, ..] if next.is_ascii_alphabetic());
    let width = if doubled { 2 } else { 1 };
    let inner = &text[open + width..];
    let mut from = 0;
    loop {
        let at = from + memchr::memchr(b'"', &inner[from..])?;
        let escapes = inner[..at].iter().rev().take_while(|&&b| b == b'\\');
        if escapes.count() % 2 == 0 {
            return Some((&inner[..at], inner.get(at + width..).unwrap_or(b"")));
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = br#"192.0.2.7 - ann lee [17/May/2015:10:05:03 +0000] "GET /a\"b?q=1 HTTP/1.1" 200 - "-" "curl 8""#;

    fn get(line: &[u8], vhost: bool, name: &str) -> Option<String> {
        let (_, record) = Parser::new(vhost).parse(line).ok()?;
        Some(String::from_utf8(record.get(&Field::new(name))?.to_vec()).unwrap())
    }

    #[test]
    fn fields() {
        let cases = [
            ("client", Some("192.0.2.7")),
            ("user", Some("ann lee")),
            ("path", Some(r#"/a\"b"#)),
            ("method", Some("GET")),
            ("status", Some("200")),
            ("bytes", Some("0")),
            ("referer", None),
            ("agent", Some("curl 8")),
            ("host", None),
            ("ident", None),
            ("colour", None),
        ];
        for (name, value) in cases {
            assert_eq!(get(LINE, false, name).as_deref(), value, "{name}");
        }
    }

    #[test]
    fn an_even_number_of_backslashes_escapes_no_quote() {
        let get = |target: &str, name| {
            let line = format!(
                r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET {target}" 200 5 "r" "a""#
            );
            get(line.as_bytes(), false, name)
        };
        for (target, path) in [(r"/\\", r"/\\"), (r#"/\\\" x"#, r#"/\\\""#), (r"\\", r"\\")] {
            assert_eq!(get(target, "path").as_deref(), Some(path));
            assert_eq!(get(target, "status").as_deref(), Some("200"));
            assert_eq!(get(target, "agent").as_deref(), Some("a"));
        }
    }

    #[test]
    fn every_field_is_there() {
        let line = [b"example.org ", LINE].concat();
        let line = String::from_utf8(line).unwrap() + " \"192.0.2.9\"";
        let line = line
            .replace("\"-\"", "\"r\"")
            .replace(" - ann lee", " i ann");
        for name in FIELDS {
            assert!(get(line.as_bytes(), true, name).is_some(), "{name}");
        }
    }

    #[test]
    fn the_same_line_in_quotes_or_behind_a_host() {
        let quoted = [b"\"", LINE, b"\""].concat();
        assert_eq!(get(&quoted, false, "client").as_deref(), Some("192.0.2.7"));
        assert_eq!(get(&quoted, false, "status").as_deref(), Some("200"));
        let client = [b"\"192.0.2.7\"", &LINE[9..]].concat();
        assert_eq!(get(&client, false, "client").as_deref(), Some("192.0.2.7"));
        assert_eq!(get(&client, false, "agent").as_deref(), Some("curl 8"));
        let vhost = [b"example.org:443 ", LINE].concat();
        assert_eq!(
            get(&vhost, true, "host").as_deref(),
            Some("example.org:443")
        );
        assert_eq!(get(&vhost, true, "agent").as_deref(), Some("curl 8"));
        let doubled = br#""192.0.2.7 - - [17/May/2015:10:05:03 +0000] ""GET /x HTTP/1.1"" 200 5""#;
        assert_eq!(get(doubled, false, "path").as_deref(), Some("/x"));
        assert_eq!(get(doubled, false, "status").as_deref(), Some("200"));
    }

    #[test]
    fn times_of_other_notations() {
        for stamp in [
            "1431857103.500",
            "1431857103500",
            "2015-05-17T12:05:03.5+02:00",
        ] {
            let line = format!("192.0.2.7 - - [{stamp}] \"GET /a HTTP/1.1\" 200 5");
            let (time, _) = Parser::new(false).parse(line.as_bytes()).ok().unwrap();
            assert_eq!(time.nanos, 1_431_857_103_500_000_000, "{stamp}");
        }
    }

    #[test]
    fn a_user_chooses_neither_the_time_nor_to_be_skipped() {
        for user in [
            "a [1795741030]",
            "- [1795741030]",
            "- [27/Nov/2026:01:22:38 +0000]",
            "[",
            "a [b",
            " a",
            "[1795741030] \\x22GET",
            r#"a [1795741030] \"GET"#,
            r"a\\",
            "\"\"",
        ] {
            for host in ["", "example.org "] {
                let line = format!(
                    r#"{host}2001:db8::1 - {user} [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5"#
                );
                let record = Parser::new(!host.is_empty()).parse(line.as_bytes()).ok();
                let (time, record) = record.unwrap_or_else(|| panic!("{line}"));
                assert_eq!(time.nanos, 1_431_857_103_000_000_000, "{line}");
                assert_eq!(record.client, b"2001:db8::1", "{line}");
                assert_eq!(record.user(), user.as_bytes(), "{line}");
                assert_eq!(record.get(&Field::Path), Some(&b"/a"[..]), "{line}");
            }
        }
    }

    #[test]
    fn text_between_the_time_and_the_request() {
        let line = |user: &str, text: &str| {
            let line = format!(
                r#"192.0.2.7 - {user} [17/May/2015:10:05:03 +0000] {text}"GET /[7] HTTP/1.1" 200"#
            );
            Parser::new(false)
                .parse(line.as_bytes())
                .map(|(time, _)| time.nanos)
        };
        assert_eq!(line("ann", "example.org "), Ok(1_431_857_103_000_000_000));
        assert_eq!(line("a [b", "example.org "), Ok(1_431_857_103_000_000_000));
        assert_eq!(line("- [1795741030]", "example.org "), Err(Skip::Ambiguous));
        assert_eq!(line("ann", "a [1795741030] b "), Err(Skip::Ambiguous));
    }

    #[test]
    fn lists_of_forwarded_addresses() {
        let line = [b"9.9.9.9, 198.51.100.1, ", LINE, b" \"9.9.9.9, 192.0.2.9\""].concat();
        let client = get(&line, false, "client");
        assert_eq!(client.as_deref(), Some("9.9.9.9, 198.51.100.1, 192.0.2.7"));
        assert_eq!(get(&line, false, "user").as_deref(), Some("ann lee"));
        let listed = get(&line, false, "http_x_forwarded_for");
        assert_eq!(listed.as_deref(), Some("9.9.9.9, 192.0.2.9"));
    }

    #[test]
    fn broken_lines() {
        let cases: [(&[u8], Skip); 10] = [
            (
                b"2016-10-06T00:17:09Z stdout F 192.0.2.7 - - [17/May/2015:10:05:03 +0000]",
                Skip::Malformed,
            ),
            (
                b"Mar 11 12:00:00 web nginx: 192.0.2.7 - - [17/May/2015:10:05:03 +0000]",
                Skip::Malformed,
            ),
            (
                b"owner bucket [17/May/2015:10:05:03 +0000] 192.0.2.7",
                Skip::Malformed,
            ),
            (
                b"a.example 192.0.2.7 - - [17/May/2015:10:05:03 +0000]",
                Skip::Malformed,
            ),
            (b"", Skip::Malformed),
            (b" - - [17/May/2015:10:05:03 +0000]", Skip::Malformed),
            (b"192.0.2.7", Skip::Malformed),
            (b"192.0.2.7 - - [17/May/2015:10:05", Skip::Malformed),
            (b"192.0.2.7 - - [17/May/2015:10:05:61 +0000]", Skip::Time),
            (b"\"", Skip::Malformed),
        ];
        for (line, skip) in cases {
            assert_eq!(Parser::new(false).parse(line).err(), Some(skip));
        }
        let cut = b"192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET /a";
        assert_eq!(get(cut, false, "client").as_deref(), Some("192.0.2.7"));
        assert_eq!(get(cut, false, "path"), None);
    }
}
