//! Encodes replies in RESP2 and RESP3, and writes decisions as replies.

use std::time::Duration;

use earrrl::internal::Brief;
use earrrl::{Decision, Outcome, Wait};

use crate::engine::throttle::Throttled;
use crate::protocol::response::SecondsText;
use crate::service::answer::Answer;
use crate::service::reserve::Reserved;

/// The version of RESP that a connection uses. It is RESP2 until the client sends `HELLO 3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// RESP2, which has no maps and no doubles.
    #[default]
    V2,
    /// RESP3, which adds maps, doubles, booleans and nulls.
    V3,
}

/// An encoder that appends replies to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    /// The version of RESP that replies are written in.
    pub version: Version,
}

impl<'a> Writer<'a> {
    /// Creates a writer that appends replies in this version of RESP to `out`.
    pub fn new(out: &'a mut Vec<u8>, version: Version) -> Self {
        Self { out, version }
    }

    /// Writes a simple string, `+text`. The text must not have a line break.
    pub fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.line_end();
    }

    /// Writes the error `-ERR text`. Characters of `text` that would end the line are replaced.
    pub fn error(&mut self, text: &str) {
        self.error_code("ERR", text);
    }

    /// Writes the error `-CODE text`, with a code that client libraries recognize, such as
    /// `NOAUTH`, `NOPROTO` or `WRONGPASS`.
    pub fn error_code(&mut self, code: &str, text: &str) {
        self.out.push(b'-');
        self.out.extend_from_slice(code.as_bytes());
        self.out.push(b' ');
        self.out.extend(
            text.bytes()
                .map(|byte| if byte.is_ascii_control() { b' ' } else { byte }),
        );
        self.line_end();
    }

    /// Writes an integer, `:value`.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// Writes the head of an array. The caller then writes its `len` elements.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len as i64);
    }

    /// Writes the head of a map, or in RESP2 of a flat array. The caller then writes `pairs` keys,
    /// each followed by its value.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            Version::V2 => self.array(pairs * 2),
            Version::V3 => self.header(b'%', pairs as i64),
        }
    }

    /// Writes the name of an entry of a map. The caller then writes its value.
    pub fn entry(&mut self, name: &str) -> &mut Self {
        self.bulk(name.as_bytes());
        self
    }

    /// Writes a value, or a null if there is none.
    #[inline]
    pub fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.nil(),
        }
    }

    /// Writes a bulk string, which may have any bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.line_end();
    }

    /// Writes a null: `_`, or in RESP2 a null bulk string.
    pub fn nil(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::V2 => b"$-1\r\n".as_slice(),
            Version::V3 => b"_\r\n",
        });
    }

    /// Writes a boolean, or in RESP2 the integer 1 or 0.
    pub fn boolean(&mut self, value: bool) {
        match self.version {
            Version::V2 => self.integer(i64::from(value)),
            Version::V3 => self
                .out
                .extend_from_slice(if value { b"#t\r\n" } else { b"#f\r\n" }),
        }
    }

    /// Writes a double, or in RESP2 a bulk string with its decimal text. Infinities and NaN are
    /// written as null.
    pub fn double(&mut self, value: f64) {
        if !value.is_finite() {
            return self.nil();
        }
        // Most numbers are whole and are formatted faster as integers: most limits, and the rate of
        // a client without earlier requests.
        let whole = value as i32;
        if f64::from(whole) == value {
            return self.number(itoa::Buffer::new().format(whole).as_bytes());
        }
        let mut buffer = zmij::Buffer::new();
        let text = buffer.format_finite(value);
        self.number(text.strip_suffix(".0").unwrap_or(text).as_bytes());
    }

    /// Writes a count as an integer, or in RESP2 as a bulk string.
    pub fn count(&mut self, value: u64) {
        match self.version {
            Version::V2 => self.bulk(itoa::Buffer::new().format(value).as_bytes()),
            Version::V3 => self.integer(i64::try_from(value).unwrap_or(i64::MAX)),
        }
    }

    /// Writes a duration as a number of seconds, exact to the nanosecond.
    #[inline]
    pub fn seconds(&mut self, duration: Duration) {
        let mut text = SecondsText::default();
        self.number(text.format(duration));
    }

    /// Appends bytes that are already encoded as RESP.
    #[inline]
    pub fn raw(&mut self, encoded: &[u8]) {
        self.out.extend_from_slice(encoded);
    }

    fn number(&mut self, text: &[u8]) {
        match self.version {
            Version::V2 => self.bulk(text),
            Version::V3 => {
                self.out.push(b',');
                self.out.extend_from_slice(text);
                self.line_end();
            }
        }
    }

    #[inline]
    fn header(&mut self, kind: u8, value: i64) {
        // Most counts and lengths have one or two digits, which are written faster without a
        // formatter.
        match value {
            0..=9 => self.raw(&[kind, b'0' + value as u8, b'\r', b'\n']),
            10..=99 => {
                let tens = value as u8 / 10;
                let ones = value as u8 % 10;
                self.raw(&[kind, b'0' + tens, b'0' + ones, b'\r', b'\n']);
            }
            _ => {
                self.out.push(kind);
                self.out
                    .extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
                self.line_end();
            }
        }
    }

    #[inline]
    fn line_end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Writes the reply to `CL.THROTTLE`, the five integers that redis-cell defines.
#[inline]
pub(super) fn write_throttled(throttled: Throttled, reply: &mut Writer<'_>) {
    reply.array(5);
    reply.integer(throttled.limited.into());
    reply.integer(throttled.limit);
    reply.integer(throttled.remaining);
    reply.integer(throttled.retry_after);
    reply.integer(throttled.reset_after);
}

/// Writes the reply to `EARRRL.ALLOW`, three integers: 1 if the request is allowed or else 0, the
/// remaining quota, and the milliseconds until a retry can succeed, or -1 if none can.
#[inline]
pub(super) fn write_brief(brief: Option<Brief>, reply: &mut Writer<'_>) {
    let Some(brief) = brief else {
        // The rule exempts this client, so the request is allowed and has no quota.
        return reply.raw(b"*3\r\n:1\r\n:-1\r\n:0\r\n");
    };
    reply.array(3);
    reply.integer(brief.is_allowed().into());
    reply.integer(i64::try_from(brief.remaining).unwrap_or(i64::MAX));
    reply.integer(brief.wait.duration().map_or(-1, whole_millis));
}

/// Returns a duration in whole milliseconds, rounded up.
#[inline]
fn whole_millis(wait: Duration) -> i64 {
    i64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// Writes the decision on a request's attributes, and the names of the rules that matched them.
pub(super) fn write_matching(answer: &Answer<'_>, reply: &mut Writer<'_>) {
    reply.map(10);
    write_figures(answer.decision.as_ref(), reply);
    let deciding = answer
        .deciding()
        .map(|charged| charged.rule.name.as_bytes());
    reply.entry("rule").optional(deciding, Writer::bulk);
    reply.entry("over").array(answer.over().count());
    answer
        .over()
        .for_each(|(_, rule)| reply.bulk(rule.name.as_bytes()));
}

/// Writes the decision as pairs of names and values. If the request may have `several` charges, two
/// more pairs give the index of the charge that the decision's numbers belong to, and the charges
/// that were over their limit.
#[inline]
pub(super) fn write_answer(answer: &Answer<'_>, several: bool, reply: &mut Writer<'_>) {
    write_pairs(answer, several, 0, reply);
}

/// Writes the decision on a reservation, its id and the granted costs.
pub(super) fn write_reserved(reserved: &Reserved<'_>, several: bool, reply: &mut Writer<'_>) {
    write_pairs(&reserved.answer, several, 2, reply);
    let id = reserved.id.map(|id| id.to_string());
    let id = id.as_deref().map(str::as_bytes);
    reply.entry("reservation").optional(id, Writer::bulk);
    reply.entry("granted");
    let mut granted = reserved.granted.iter().map(|cost| cost.as_f64());
    if several {
        reply.array(granted.len());
        granted.for_each(|cost| reply.double(cost));
    } else {
        reply.optional(granted.next(), Writer::double);
    }
}

/// Writes the figures after a commit, and true if it was a repeated one.
pub(super) fn write_committed(answer: &Answer<'_>, repeated: bool, reply: &mut Writer<'_>) {
    write_pairs(answer, false, 1, reply);
    reply.entry("repeated").boolean(repeated);
}

/// Writes the pairs of a decision, in a map that has `more` pairs, which the caller writes.
#[inline]
fn write_pairs(answer: &Answer<'_>, several: bool, more: usize, reply: &mut Writer<'_>) {
    let several = several && answer.decision.is_some();
    reply.map(more + if several { 11 } else { 9 });
    let decision = answer.decision.as_ref();
    write_figures(decision, reply);
    if let (true, Some(decision)) = (several, decision) {
        reply.raw(b"$6\r\ncharge\r\n");
        reply.integer(decision.rule as i64);
        reply.raw(b"$4\r\nover\r\n");
        reply.array(answer.over().count());
        answer
            .over()
            .for_each(|(place, _)| reply.integer(place as i64));
    }
    write_time(decision, reply);
}

/// Writes the time of the charge, which the client sends back in a refund. The time is sent as
/// text, since a client that parses it as a double would round it.
#[inline]
fn write_time(decision: Option<&Decision>, reply: &mut Writer<'_>) {
    reply.raw(b"$2\r\nt0\r\n");
    reply.optional(decision, |reply, decision| {
        let since = Duration::from_nanos(decision.at.get());
        reply.bulk(SecondsText::default().format(since));
    });
}

#[inline]
fn write_figures(decision: Option<&Decision>, reply: &mut Writer<'_>) {
    reply.raw(b"$7\r\nallowed\r\n");
    reply.boolean(decision.is_none_or(|decision| decision.allowed));
    reply.raw(b"$6\r\naction\r\n");
    reply.bulk(
        decision
            .map_or(Outcome::Allow, |decision| decision.outcome)
            .name()
            .as_bytes(),
    );
    reply.raw(b"$4\r\nrate\r\n");
    reply.optional(decision.and_then(|decision| decision.rate), Writer::double);
    reply.raw(b"$5\r\nlimit\r\n");
    reply.optional(decision.map(|decision| decision.limit), Writer::double);
    reply.raw(b"$9\r\nremaining\r\n");
    let remaining = decision.map(|decision| decision.remaining);
    reply.optional(remaining, Writer::count);
    reply.raw(b"$11\r\nretry_after\r\n");
    let wait = decision.map_or(Wait::NONE, |decision| decision.retry_after);
    reply.optional(wait.duration(), Writer::seconds);
    reply.raw(b"$11\r\nreset_after\r\n");
    reply.seconds(
        decision
            .map(|decision| decision.reset_after)
            .unwrap_or_default(),
    );
    reply.raw(b"$5\r\ndelay\r\n");
    reply.seconds(decision.map(|decision| decision.delay).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: Version, write: impl Fn(&mut Writer<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out, version));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn integers() {
        for value in [0, 7, 9, 10, -1, i64::MAX, i64::MIN] {
            assert_eq!(
                written(Version::V2, |w| w.integer(value)),
                format!(":{value}\r\n")
            );
        }
    }

    #[test]
    fn doubles() {
        for (value, text) in [(1.0, "1"), (0.41, "0.41"), (1e300, "1e+300"), (0.0, "0")] {
            assert_eq!(
                written(Version::V3, |w| w.double(value)),
                format!(",{text}\r\n")
            );
        }
        assert_eq!(written(Version::V3, |w| w.double(f64::NAN)), "_\r\n");
        assert_eq!(written(Version::V2, |w| w.double(f64::INFINITY)), "$-1\r\n");
    }

    #[test]
    fn an_error_is_one_line() {
        assert_eq!(
            written(Version::V2, |w| w.error("a\r\n+OK")),
            "-ERR a  +OK\r\n"
        );
    }

    #[test]
    fn maps_flatten_in_resp2() {
        assert_eq!(written(Version::V2, |w| w.map(2)), "*4\r\n");
        assert_eq!(written(Version::V3, |w| w.map(2)), "%2\r\n");
    }
}
