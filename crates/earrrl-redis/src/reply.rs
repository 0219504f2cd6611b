//! The answers of scripts.
//!
//! A script reports only what it saw: the verdicts, the time, and each record as it was before the
//! request. Rates, waits and the remaining quota are computed from that by the pure functions that
//! every engine uses, so that there is no second implementation in Lua.

use earrrl::Nanos;
use redis::Value;

use crate::algorithm::{Fields, nanos};

/// A script's verdict on one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptVerdict {
    /// The request is within the limit.
    Allowed,
    /// The request is over the limit, but may be held back until it is allowed.
    Held,
    /// The request is over the limit.
    Over,
}

/// The verdict byte of a script that changed nothing, since the call came too late.
const EXPIRED: u8 = b'3';
/// The verdict byte of a request in a batch that was not decided, since an error occurred.
const FAILED: u8 = b'4';
/// The length in bytes of the verdicts of a batch, three bits for each request.
const VERDICTS_LEN: usize = 6;

/// The result of one charge in a script.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observation {
    pub(crate) verdict: ScriptVerdict,
    /// The record before the request, or the summary of a tally after it.
    pub(crate) state: Vec<u8>,
    /// The number of units that a request under a near rule was granted, of which it uses one; 1 for other requests.
    pub(crate) granted: u16,
    /// True if the charge was stored and then taken back.
    pub(crate) undone: bool,
    /// The time of the decision, since every shard of a Cluster has a clock of its own.
    pub(crate) at: Nanos,
}

impl Observation {
    fn new(verdict: ScriptVerdict, state: &[u8]) -> Self {
        Self {
            verdict,
            state: state.into(),
            granted: 1,
            undone: false,
            at: Nanos::ZERO,
        }
    }
}

/// The answer of a script.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// Every charge was judged, and stored as its policy requires.
    Decided {
        /// Redis's time; `None` if the caller gave a time.
        time: Option<Nanos>,
        observed: Vec<Observation>,
    },
    /// Nothing was changed, since the call came after its latest time.
    Expired { time: Nanos },
}

impl Reply {
    /// Reads the number of granted units, with which a state begins.
    pub(crate) fn with_units(mut self) -> Option<Self> {
        if let Self::Decided { observed, .. } = &mut self {
            for one in observed {
                let (granted, state) = one.state.split_first_chunk()?;
                one.granted = u16::from_le_bytes(*granted);
                one.state = state.to_vec();
            }
        }
        Some(self)
    }
}

/// Reads an answer of `single.lua`: the verdict, the time, a space, and the state.
pub(crate) fn single(bytes: &[u8]) -> Option<Reply> {
    let (&verdict, rest) = bytes.split_first()?;
    let (time, state) = split_time(rest)?;
    Some(match verdict {
        EXPIRED => Reply::Expired { time: time? },
        _ => Reply::Decided {
            time,
            observed: vec![Observation::new(read(verdict)?, state)],
        },
    })
}

/// Reads an answer of `several.lua`: the time, a space, then the verdict, length and state of each
/// charge.
pub(crate) fn several(bytes: &[u8]) -> Option<Reply> {
    let (time, mut rest) = split_time(bytes)?;
    let mut observed = Vec::new();
    while let Some((&[verdict, length], more)) = rest.split_first_chunk() {
        if verdict == EXPIRED {
            return Some(Reply::Expired { time: time? });
        }
        let (state, more) = more.split_at_checked(length.into())?;
        observed.push(Observation::new(read(verdict)?, state));
        rest = more;
    }
    rest.is_empty().then_some(Reply::Decided { time, observed })
}

/// Reads an answer of `batch.lua` to `count` requests: the time, the verdicts, the lengths of the states,
/// and the states. `None` stands for a request that must be sent again by itself.
pub(crate) fn batch(bytes: &[u8], count: usize) -> Option<Vec<Option<Reply>>> {
    let (time, rest) = bytes.split_first_chunk()?;
    // A time below zero means that the caller gave the time.
    let time = Some(f64::from_le_bytes(*time))
        .filter(|micros| *micros >= 0.0)
        .map(nanos);
    if rest.is_empty() {
        return Some(vec![Some(Reply::Expired { time: time? }); count]);
    }
    let mut fields = Fields(rest);
    let mut verdicts = fields.whole(VERDICTS_LEN)?;
    let (lengths, mut states) = fields.0.split_at_checked(count)?;
    let mut replies = Vec::with_capacity(count);
    for length in lengths {
        let (state, more) = states.split_at_checked((*length).into())?;
        let verdict = b'0' + (verdicts & 7) as u8;
        (verdicts, states) = (verdicts >> 3, more);
        replies.push(match verdict {
            FAILED => None,
            _ => {
                let observed = vec![Observation::new(read(verdict)?, state)];
                Some(Reply::Decided { time, observed })
            }
        });
    }
    states.is_empty().then_some(replies)
}

/// The result of a commit in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitStatus {
    Done,
    Repeated,
    Unknown,
}

/// The answer of `commit.lua`.
#[derive(Debug, PartialEq)]
pub(crate) struct CommitReply {
    pub(crate) status: CommitStatus,
    /// Redis's time; `None` if the caller gave a time.
    pub(crate) time: Option<Nanos>,
    /// The state after the commit of each record, as scripts report it.
    pub(crate) states: Vec<Vec<u8>>,
}

/// Reads an answer of `commit.lua` about `count` records: the status, the time, a space, then the length and
/// state of each record.
pub(crate) fn commit(answer: &Value, count: usize) -> Option<CommitReply> {
    let Value::BulkString(bytes) = answer else {
        return None;
    };
    let (status, rest) = bytes.split_first()?;
    let (time, rest) = split_time(rest)?;
    let status = match *status {
        b'0' => CommitStatus::Done,
        b'1' => CommitStatus::Repeated,
        b'2' => CommitStatus::Unknown,
        _ => return None,
    };
    let mut fields = Fields(rest);
    let mut state = || {
        let length = fields.whole(1)?;
        Some(fields.bytes(length as usize)?.to_vec())
    };
    let states = (0..count).map(|_| state()).collect::<Option<_>>()?;
    Some(CommitReply {
        status,
        time,
        states,
    })
}

fn read(verdict: u8) -> Option<ScriptVerdict> {
    match verdict {
        b'0' => Some(ScriptVerdict::Allowed),
        b'1' => Some(ScriptVerdict::Held),
        b'2' => Some(ScriptVerdict::Over),
        _ => None,
    }
}

/// Reads `seconds.microseconds` up to a space. The time is `None` if the text is empty, which means
/// that the caller gave the time.
fn split_time(bytes: &[u8]) -> Option<(Option<Nanos>, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b' ')?;
    let time = std::str::from_utf8(&bytes[..end]).ok()?;
    let rest = &bytes[end + 1..];
    if time.is_empty() {
        return Some((None, rest));
    }
    let (secs, micros) = time.split_once('.')?;
    let (secs, micros): (u64, u64) = (secs.parse().ok()?, micros.parse().ok()?);
    let nanos = secs
        .checked_mul(1_000_000)?
        .checked_add(micros)?
        .checked_mul(1000)?;
    Some((Some(Nanos::new(nanos)), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let observed = Observation::new;
        let time = Some(Nanos::new(1_700_000_000_000_007_000));
        assert_eq!(
            single(b"01700000000.7 ab c"),
            Some(Reply::Decided {
                time,
                observed: vec![observed(ScriptVerdict::Allowed, b"ab c")]
            })
        );
        assert_eq!(
            several(b" 2\x02ab1\x00"),
            Some(Reply::Decided {
                time: None,
                observed: vec![
                    observed(ScriptVerdict::Over, b"ab"),
                    observed(ScriptVerdict::Held, b"")
                ]
            })
        );
        let past = Some(Reply::Expired {
            time: Nanos::new(1_700_000_000_000_007_000),
        });
        assert_eq!(single(b"31700000000.7 "), past);
        assert_eq!(several(b"1700000000.7 3\x00"), past);
        let micros = 1_700_000_000_000_007f64.to_le_bytes();
        assert_eq!(batch(&micros, 2), Some(vec![past.clone(), past]));
        let decided = |verdict, state| Reply::Decided {
            time,
            observed: vec![observed(verdict, state)],
        };
        assert_eq!(
            batch(&[&micros, &b"\x20\x05\0\0\0\0\x02\0\0\0ab"[..]].concat(), 4),
            Some(vec![
                Some(decided(ScriptVerdict::Allowed, b"ab")),
                None,
                None,
                Some(decided(ScriptVerdict::Over, b"")),
            ])
        );
    }

    #[test]
    fn what_no_script_of_ours_answers_is_none() {
        for bytes in [
            &b""[..],
            b"0",
            b"9 ",
            b"017.x ",
            b"099999999999999999999.0 ",
            b"0-1.0 ",
            b"3 ",
        ] {
            assert_eq!(single(bytes), None, "{bytes:?}");
        }
        for bytes in [&b""[..], b" 0\x05ab", b" 7\x00", b" 0"] {
            assert_eq!(several(bytes), None, "{bytes:?}");
        }
        for bytes in [&b"123"[..], b"", b"\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\0\0"] {
            let bytes = [&[0; 8], bytes].concat();
            assert_eq!(
                batch(&bytes, 2).filter(|_| bytes.len() > 8),
                None,
                "{bytes:?}"
            );
        }
        for rest in [&b"\0\0\0\0\0\0\0\x05ab"[..], b"\x07\0\0\0\0\0\0\0"] {
            assert_eq!(batch(&[&[0; 8], rest].concat(), 2), None, "{rest:?}");
        }
        assert_eq!(
            batch(&(-1f64).to_le_bytes(), 2),
            None,
            "late by a time that the caller gave"
        );
    }
}
