//! Answers of the scripts, and the decision rebuilt from them.
//!
//! A script tells what it saw, not what follows from it: verdicts, the time, and each record as it
//! was before the request. Rates, waits and what remains come from the pure functions that every
//! other engine uses, so that Rust and Lua can't drift apart in them.

use earrrl::internal::{Judgement, combine};
use earrrl::{Cost, Decision, Figures, Mode, Nanos, Rule, State};

use crate::algorithm::{self, Answers};

/// What Lua said of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptVerdict {
    /// Within the limit.
    Allowed,
    /// Over it, but for no longer than it may be held.
    Held,
    /// Over it.
    Over,
}

/// The verdict of a script that did nothing: the record is of other parameters.
pub(crate) const FOREIGN: u8 = b'3';
/// And of one that came too late to do anything.
const PAST: u8 = b'4';

/// A charge as the script saw it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) verdict: ScriptVerdict,
    /// The record before, or the summary of a tally after.
    pub(crate) state: Vec<u8>,
    /// Stored, and taken back again.
    pub(crate) undone: bool,
    /// When: on a Cluster, every shard has a clock of its own.
    pub(crate) at: Nanos,
}

impl Seen {
    fn new(verdict: ScriptVerdict, state: &[u8]) -> Self {
        Self { verdict, state: state.into(), undone: false, at: Nanos::ZERO }
    }
}

/// A script's answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// All charges were judged, and stored as their policies say.
    Decided {
        /// Redis's time, where it was asked for.
        time: Option<Nanos>,
        seen: Vec<Seen>,
    },
    /// Nothing was done: the record of this charge is of other parameters.
    Foreign { time: Option<Nanos>, place: usize },
    /// Nothing was done: the call came after the latest time that it named.
    Past { time: Nanos },
}

/// The answer of `single.lua`: verdict, time, a space, state.
pub(crate) fn single(bytes: &[u8]) -> Option<Reply> {
    let (&verdict, rest) = bytes.split_first()?;
    let (time, state) = split_time(rest)?;
    Some(match verdict {
        FOREIGN => Reply::Foreign { time, place: 0 },
        PAST => Reply::Past { time: time? },
        _ => Reply::Decided { time, seen: vec![Seen::new(read(verdict)?, state)] },
    })
}

/// The answer of `several.lua`: time, a space, then verdict, length and state of each.
pub(crate) fn several(bytes: &[u8]) -> Option<Reply> {
    let (time, mut rest) = split_time(bytes)?;
    let mut seen = Vec::new();
    while let Some((&[verdict, length], more)) = rest.split_first_chunk() {
        match verdict {
            FOREIGN => return Some(Reply::Foreign { time, place: length.into() }),
            PAST => return Some(Reply::Past { time: time? }),
            _ => {}
        }
        let (state, more) = more.split_at_checked(length.into())?;
        seen.push(Seen::new(read(verdict)?, state));
        rest = more;
    }
    rest.is_empty().then_some(Reply::Decided { time, seen })
}

fn read(verdict: u8) -> Option<ScriptVerdict> {
    match verdict {
        b'0' => Some(ScriptVerdict::Allowed),
        b'1' => Some(ScriptVerdict::Held),
        b'2' => Some(ScriptVerdict::Over),
        _ => None,
    }
}

/// `seconds.microseconds` up to a space; nothing before it where Redis was not asked.
pub(crate) fn split_time(bytes: &[u8]) -> Option<(Option<Nanos>, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b' ')?;
    let (time, rest) = (std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]);
    if time.is_empty() {
        return Some((None, rest));
    }
    let (secs, micros) = time.split_once('.')?;
    let (secs, micros): (u64, u64) = (secs.parse().ok()?, micros.parse().ok()?);
    let nanos = secs.checked_mul(1_000_000)?.checked_add(micros)?.checked_mul(1000)?;
    Some((Some(Nanos::new(nanos)), rest))
}

/// The decision that follows from what was seen, and each client's state after it.
pub(crate) fn decide(
    charges: &[(&Rule, Cost)],
    seen: &[Seen],
    mode: Mode,
) -> (Decision, Vec<Option<State>>) {
    let each: Vec<Charged<'_>> = charges
        .iter()
        .zip(seen)
        .map(|(&(rule, cost), seen)| Charged::new(rule, cost, seen))
        .collect();
    let all_pass = each.iter().all(|charged| charged.judgement.passes());
    let after = each.iter().map(|charged| charged.after(mode, all_pass));
    let (states, figures): (Vec<_>, Vec<_>) = after.unzip();
    let judged = each.iter().zip(&figures);
    let judged = judged.map(|(charged, figures)| (charged.rule, &charged.judgement, figures));
    let at = seen.first().map_or(Nanos::ZERO, |seen| seen.at);
    (combine(at, judged), states)
}

struct Charged<'a> {
    rule: &'a Rule,
    cost: Cost,
    now: Nanos,
    judgement: Judgement,
    state: Option<State>,
    /// Whether the state has the request in it already.
    after: bool,
}

impl<'a> Charged<'a> {
    fn new(rule: &'a Rule, cost: Cost, seen: &Seen) -> Self {
        let (limit, now) = (rule.limit(), seen.at);
        let after = algorithm::of(limit).answers() == Answers::After;
        let state = match after {
            true if seen.undone => algorithm::decode_summary(limit, &seen.state)
                .and_then(|state| limit.refund(Some(state), now, now, cost)),
            true => algorithm::decode_summary(limit, &seen.state),
            false => algorithm::decode(limit, &seen.state, now),
        };
        let wait = || limit.step(state.clone(), now, cost, Mode::Peek).2.retry_after;
        let judgement = Judgement::new(rule, seen.verdict == ScriptVerdict::Allowed, wait);
        Self { rule, cost, now, judgement, state, after }
    }

    /// The state and the figures after the decision.
    fn after(&self, mode: Mode, all_pass: bool) -> (Option<State>, Figures) {
        let mode = if self.after { Mode::Peek } else { self.judgement.settle(mode, all_pass) };
        let (state, _, figures) =
            self.rule.limit().step(self.state.clone(), self.now, self.cost, mode);
        (state, figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let seen = Seen::new;
        let time = Some(Nanos::new(1_700_000_000_000_007_000));
        assert_eq!(
            single(b"01700000000.7 ab c"),
            Some(Reply::Decided { time, seen: vec![seen(ScriptVerdict::Allowed, b"ab c")] })
        );
        assert_eq!(single(b"3 "), Some(Reply::Foreign { time: None, place: 0 }));
        assert_eq!(
            several(b" 2\x02ab1\x00"),
            Some(Reply::Decided {
                time: None,
                seen: vec![seen(ScriptVerdict::Over, b"ab"), seen(ScriptVerdict::Held, b"")]
            })
        );
        assert_eq!(several(b"1700000000.7 3\x04"), Some(Reply::Foreign { time, place: 4 }));
        let past = Some(Reply::Past { time: Nanos::new(1_700_000_000_000_007_000) });
        assert_eq!(single(b"41700000000.7 "), past);
        assert_eq!(several(b"1700000000.7 4\x00"), past);
    }

    #[test]
    fn what_no_script_of_ours_answers_is_none() {
        for bytes in
            [&b""[..], b"0", b"9 ", b"017.x ", b"099999999999999999999.0 ", b"0-1.0 ", b"4 "]
        {
            assert_eq!(single(bytes), None, "{bytes:?}");
        }
        for bytes in [&b""[..], b" 0\x05ab", b" 7\x00", b" 0"] {
            assert_eq!(several(bytes), None, "{bytes:?}");
        }
    }
}
