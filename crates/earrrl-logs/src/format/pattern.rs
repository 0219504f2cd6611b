//! Lines that are parsed with a regular expression: those of `--pattern` and `--log-format`, and
//! of the formats of most products.
//!
//! The groups of the expression are the fields: `time` is the time, `key` or `client` the client,
//! and `cost` the cost. A line with the group `attempts` stands for that many requests. The path is the group
//! `path`, or part of the group `request`.

use std::sync::Arc;

use regex::bytes::{CaptureLocations, Regex, RegexBuilder};

use super::field::{Field, path_of, target};
use super::sshd::Attempts;
use crate::envelope::Message;
use crate::line::time::{self, Stamp};
use crate::line::{Skip, is_address};

/// The greatest size of an expression's compiled automaton, in bytes.
const MAX_SIZE: usize = 4 << 20;

/// The group of the number of requests that a line stands for.
const ATTEMPTS: &str = "attempts";

/// The group of a second text on the line that could be the client's field.
const TWIN: &str = "twin";

/// A regular expression for lines, and the names of its groups.
///
/// ```
/// use earrrl_logs::format::LinePattern;
///
/// let pattern = LinePattern::given(r"^(?<time>\S+) (?<key>\S+) (?<path>\S+)$")?;
/// assert!(pattern.fields().contains(&"path"));
/// assert!(LinePattern::given(r"^(?<time>\S+)$").is_err()); // which client?
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct LinePattern {
    regex: Regex,
    /// The names of the groups, in the order of the groups; empty for the whole match and unnamed
    /// groups.
    names: Vec<String>,
    /// The strptime format of the time; `None` if the time is in a usual notation.
    time_format: Option<String>,
    /// The prefix that the program's name in syslog must have.
    program: &'static str,
}

impl Default for LinePattern {
    /// Returns an expression that no line matches.
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "a constant")]
        let regex = Regex::new(r"[^\s\S]").expect("a valid expression");
        Self {
            regex,
            names: Vec::new(),
            time_format: None,
            program: "",
        }
    }
}

impl LinePattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// Returns a description of the problem, in one line, if the expression is invalid.
    pub fn new(expression: &str) -> Result<Self, String> {
        let regex = RegexBuilder::new(expression)
            .unicode(false)
            .size_limit(MAX_SIZE)
            .build();
        let regex = regex.map_err(|error| last_line(&error.to_string()))?;
        let names = regex
            .capture_names()
            .map(|name| name.unwrap_or("").to_owned())
            .collect();
        Ok(Self {
            regex,
            names,
            time_format: None,
            program: "",
        })
    }

    /// Compiles the expression of `--pattern`, which must have groups for the time and for the key, called
    /// `key` or `client`.
    ///
    /// ```
    /// # use earrrl_logs::format::LinePattern;
    /// let error = LinePattern::given(r"^(?<time>\S+)$").unwrap_err();
    /// assert_eq!(error, "expected a group for the key, `(?<key>…)`");
    /// ```
    ///
    /// # Errors
    /// Returns a description of the problem, in one line, if the expression is invalid or lacks
    /// one of these groups.
    pub fn given(expression: &str) -> Result<Self, String> {
        let pattern = Self::new(expression)?;
        let has = |name| pattern.place(name).is_some();
        // The key's group may also have the name of the field that is the key by default.
        for (name, is_there) in [("time", has("time")), ("key", has("key") || has("client"))] {
            if !is_there {
                return Err(format!("expected a group for the {name}, `(?<{name}>…)`"));
            }
        }
        Ok(pattern)
    }

    /// Returns the pattern of a product's log format. An invalid expression would match no
    /// line, and fail the tests that parse an example of every format.
    pub(super) fn preset(expression: &str, program: &'static str) -> Self {
        let pattern = Self::new(expression).unwrap_or_default();
        Self { program, ..pattern }
    }

    /// Returns a copy of the pattern that reads times in a strptime format.
    pub fn with_time_format(&self, format: &str) -> Self {
        Self {
            time_format: Some(format.to_owned()),
            ..self.clone()
        }
    }

    /// Returns the names of the fields that the pattern finds on a line.
    ///
    /// ```
    /// # use earrrl_logs::format::LinePattern;
    /// let pattern = LinePattern::new(r"^(?<time>\S+) (?<key>\S+) (?<tenant>\S+)$")?;
    /// assert!(pattern.fields().contains(&"tenant") && pattern.fields().contains(&"client"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fields(&self) -> Vec<&str> {
        let named = self
            .names
            .iter()
            .map(String::as_str)
            .filter(|&name| !name.is_empty() && name != TWIN);
        let also = [
            ("client", self.place("key").or(self.place("forwarded_for"))),
            ("path", self.place("request")),
            ("method", self.place("request")),
        ];
        named
            .chain(
                also.into_iter()
                    .filter_map(|(name, group)| group.map(|_| name)),
            )
            .collect()
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }
}

/// Returns the last line of an error message, since messages about regular expressions have
/// several lines.
fn last_line(text: &str) -> String {
    text.lines()
        .last()
        .unwrap_or(text)
        .trim_start_matches("error: ")
        .to_owned()
}

/// Parses lines with a pattern.
pub(super) struct Parser {
    pattern: Arc<LinePattern>,
    spans: CaptureLocations,
    /// The text and the value of the last time, since busy logs repeat it.
    last: (Vec<u8>, Option<Stamp>),
    /// The attempts to log in by SSH that were counted, if the lines are about these.
    attempts: Option<Attempts>,
}

/// A line that matches a pattern.
pub(super) struct Line<'a> {
    line: &'a [u8],
    pattern: &'a LinePattern,
    spans: &'a CaptureLocations,
}

impl Parser {
    /// Creates a parser of lines with this pattern. If `by_attempt` is true, several lines may be about one
    /// attempt to log in by SSH.
    pub(super) fn new(pattern: Arc<LinePattern>, by_attempt: bool) -> Self {
        let spans = pattern.regex.capture_locations();
        Self {
            pattern,
            spans,
            last: (Vec::new(), None),
            attempts: by_attempt.then(Attempts::default),
        }
    }

    fn time(&mut self, text: &[u8]) -> Option<Stamp> {
        if self.last.0 != text || self.last.1.is_none() {
            self.last.1 = match &self.pattern.time_format {
                Some(format) => Some(Stamp {
                    nanos: time::parse_as(format, text)?,
                    has_zone: ["%z", "%:z", "%Z", "%Q", "%s"]
                        .iter()
                        .any(|zone| format.contains(zone)),
                }),
                None => Some(Stamp::of(time::parse_any, text)?),
            };
            self.last.0.clear();
            self.last.0.extend_from_slice(text);
        }
        self.last.1
    }

    /// Returns the request on a line.
    ///
    /// # Errors
    /// Returns [`Skip::NoRequest`] for lines of the right program that the pattern does not match.
    pub(super) fn parse<'a>(&'a mut self, message: Message<'a>) -> Result<(Stamp, Line<'a>), Skip> {
        if !message.program.starts_with(self.pattern.program.as_bytes()) {
            return Err(Skip::Malformed);
        }
        let text = message.text;
        let regex = &self.pattern.regex;
        if regex.captures_read(&mut self.spans, text).is_none() {
            return Err(match self.pattern.program {
                "" => Skip::Malformed,
                _ => Skip::NoRequest,
            });
        }
        let place = self.pattern.place("time");
        let time = match place.and_then(|place| self.spans.get(place)) {
            Some((start, end)) => self.time(&text[start..end]),
            None => message.time,
        };
        let time = time.ok_or(Skip::Time)?;
        let line = Line {
            line: text,
            pattern: &self.pattern,
            spans: &self.spans,
        };
        if line.is_ambiguous() {
            return Err(Skip::Ambiguous);
        }
        if let Some(attempts) = &mut self.attempts {
            let client = line.group("client").unwrap_or_default();
            attempts.count(message, client)?;
        }
        Ok((time, line))
    }

    /// Returns the names of the fields that the pattern finds on a line.
    pub(super) fn fields(&self) -> Vec<&str> {
        self.pattern.fields()
    }
}

/// Returns a whole number of at most nine digits.
fn whole_number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.len() <= 9);
    text?.parse().ok()
}

impl<'a> Line<'a> {
    /// Returns the number of requests that the line stands for.
    ///
    /// # Errors
    /// Returns [`Skip::Cost`] if the group has no whole number.
    pub(super) fn attempts(&self) -> Result<u64, Skip> {
        let attempts = self.group(ATTEMPTS).map_or(Some(1), whole_number);
        attempts.ok_or(Skip::Cost)
    }

    /// Returns the cost of the request; `None` if the pattern has no group for the cost.
    pub(super) fn cost(&self) -> Option<&'a [u8]> {
        self.group("cost")
    }

    /// Returns the value of a field; `None` if it is missing, empty or `-`.
    pub(super) fn get(&self, field: &Field) -> Option<&'a [u8]> {
        match field {
            Field::Client => ["key", "client", "forwarded_for"]
                .into_iter()
                .find_map(|name| self.group(name)),
            Field::Path => match self.group("path") {
                Some(path) => Some(path_of(path)),
                None => Some(path_of(target(self.group("request")?)?)),
            },
            Field::User => self.group("user").or_else(|| self.group("account")),
            Field::Forwarded => self.group("forwarded_for"),
            Field::Named(name) => self.group(name).or_else(|| {
                let method = || self.group("request")?.split(|&b| b == b' ').next();
                (name == "method").then(method)?
            }),
        }
    }

    /// Returns true if text that a client has sent allows two readings of the line: it looks like
    /// the field of the client or the time behind the user, or its quotes allow the list of X-Forwarded-For to end at either of
    /// two addresses.
    ///
    /// Envoy does not escape quotes: `"9.9.9.9" "x, 192.0.2.7" "curl"` is either the list
    /// `9.9.9.9` and an agent, or a longer list and the agent `curl`.
    fn is_ambiguous(&self) -> bool {
        if self.group(TWIN).is_some() || self.has_second_time() {
            return true;
        }
        if self.group("client").is_some() {
            return false;
        }
        let span = |name| self.spans.get(self.pattern.place(name)?);
        let (Some(list), Some(agent)) = (span("forwarded_for"), span("agent")) else {
            return false;
        };
        let agent_text = &self.line[agent.0..agent.1];
        memchr::memmem::find_iter(agent_text, b"\" \"").any(|at| {
            let longer = &self.line[list.0..agent.0 + at];
            is_address(
                longer
                    .rsplit(|&b| b == b',')
                    .next()
                    .unwrap_or(b"")
                    .trim_ascii(),
            )
        })
    }

    /// Returns true if brackets behind the time, and before any quote, contain a time as well: the
    /// first of them may be part of the user's name before it.
    fn has_second_time(&self) -> bool {
        let span = |name| self.spans.get(self.pattern.place(name)?);
        let (Some(user), Some(time)) = (span("user"), span("time")) else {
            return false;
        };
        if user.1 > time.0 {
            return false;
        }
        let text = &self.line[time.1..];
        let text = &text[..memchr::memchr(b'"', text).unwrap_or(text.len())];
        memchr::memchr_iter(b'[', text).any(|at| {
            let inner = &text[at + 1..];
            memchr::memchr(b']', inner).is_some_and(|len| time::parse_any(&inner[..len]).is_some())
        })
    }

    /// Returns the text of a group; `None` if the group is missing, empty or `-`.
    fn group(&self, name: &str) -> Option<&'a [u8]> {
        let (start, end) = self.spans.get(self.pattern.place(name)?)?;
        let text = &self.line[start..end];
        (!text.is_empty() && text != b"-").then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Found = (u64, Option<String>, Option<String>);

    fn read(pattern: LinePattern, lines: &[&str]) -> Vec<Result<Found, Skip>> {
        let mut parser = Parser::new(Arc::new(pattern), false);
        let text = |value: Option<&[u8]>| value.map(|v| String::from_utf8_lossy(v).into_owned());
        let mut one = |line: &&str| {
            let (time, record) = parser.parse(Message::plain(line.as_bytes()))?;
            Ok((
                time.nanos,
                text(record.get(&Field::Client)),
                text(record.cost()),
            ))
        };
        lines.iter().map(&mut one).collect()
    }

    #[test]
    fn groups_are_time_key_and_cost() {
        let pattern =
            LinePattern::given(r"^(?<time>\S+) (?<key>\S+)(?: cost=(?<cost>\d+))?").unwrap();
        let lines = ["5 a cost=7", "2015-05-17T10:05:03Z b", "x c", "", "6 -"];
        let expected = [
            Ok((5_000_000_000, Some("a".into()), Some("7".into()))),
            Ok((1_431_857_103_000_000_000, Some("b".into()), None)),
            Err(Skip::Time),
            Err(Skip::Malformed),
            Ok((6_000_000_000, None, None)),
        ];
        assert_eq!(read(pattern, &lines), expected);
    }

    #[test]
    fn times_in_a_notation_of_their_own() {
        for (format, text) in [
            ("%d.%m.%Y %H:%M:%S", "17.05.2015 10:05:03"),
            ("%d.%m.%y %T %z", "17.05.15 12:05:03 +0200"),
            ("%s", "1431857103"),
        ] {
            let pattern = LinePattern::given("^(?<time>.*) (?<key>.*)$").unwrap();
            let pattern = pattern.with_time_format(format);
            let found = read(pattern, &[&format!("{text} a"), "2015 a"]);
            assert_eq!(
                found[0],
                Ok((1_431_857_103_000_000_000, Some("a".into()), None)),
                "{format}"
            );
        }
    }

    #[test]
    fn mistakes_are_reported_in_one_line() {
        for (expression, expected) in [
            ("(", "unclosed group"),
            ("(?<time>x)", "a group for the key"),
            ("(?<key>x)", "a group for the time"),
            (r"(?<time>x)(?<key>(a{1000}){1000})", "size limit"),
        ] {
            let error = LinePattern::given(expression).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }
}
