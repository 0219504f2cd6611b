//! The answers of scripts, and the decisions that are computed from them.
//!
//! A script reports only what it saw: the verdicts, the time, and each record as it was before the
//! request. Rates, waits and the remaining quota are computed from that by the pure functions that
//! every engine uses, so that there is no second implementation in Lua.

use earrrl::internal::{Judgement, combine};
use earrrl::{Cost, Decision, Figures, Mode, Nanos, Rule, State};

use crate::algorithm::{self, Answers};

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

/// The verdict byte of a script that changed nothing, since the record has other parameters.
pub(crate) const FOREIGN: u8 = b'3';
/// The verdict byte of a script that changed nothing, since the call came too late.
const EXPIRED: u8 = b'4';

/// The result of one charge in a script.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observation {
    pub(crate) verdict: ScriptVerdict,
    /// The record before the request, or the summary of a tally after it.
    pub(crate) state: Vec<u8>,
    /// True if the charge was stored and then taken back.
    pub(crate) undone: bool,
    /// The time of the decision, since every shard of a Cluster has a clock of its own.
    pub(crate) at: Nanos,
}

impl Observation {
    fn new(verdict: ScriptVerdict, state: &[u8]) -> Self {
        Self { verdict, state: state.into(), undone: false, at: Nanos::ZERO }
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
    /// Nothing was changed, since the record of the charge at `place` has other parameters.
    Foreign { time: Option<Nanos>, place: usize },
    /// Nothing was changed, since the call came after its latest time.
    Expired { time: Nanos },
}

/// Reads an answer of `single.lua`: the verdict, the time, a space, and the state.
pub(crate) fn single(bytes: &[u8]) -> Option<Reply> {
    let (&verdict, rest) = bytes.split_first()?;
    let (time, state) = split_time(rest)?;
    Some(match verdict {
        FOREIGN => Reply::Foreign { time, place: 0 },
        EXPIRED => Reply::Expired { time: time? },
        _ => Reply::Decided { time, observed: vec![Observation::new(read(verdict)?, state)] },
    })
}

/// Reads an answer of `several.lua`: the time, a space, then the verdict, length and state of each
/// charge.
pub(crate) fn several(bytes: &[u8]) -> Option<Reply> {
    let (time, mut rest) = split_time(bytes)?;
    let mut observed = Vec::new();
    while let Some((&[verdict, length], more)) = rest.split_first_chunk() {
        match verdict {
            FOREIGN => return Some(Reply::Foreign { time, place: length.into() }),
            EXPIRED => return Some(Reply::Expired { time: time? }),
            _ => {}
        }
        let (state, more) = more.split_at_checked(length.into())?;
        observed.push(Observation::new(read(verdict)?, state));
        rest = more;
    }
    rest.is_empty().then_some(Reply::Decided { time, observed })
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

/// Computes the decision from the observations, and each client's state after it.
pub(crate) fn decide(
    charges: &[(&Rule, Cost)],
    observed: &[Observation],
    mode: Mode,
) -> (Decision, Vec<Option<State>>) {
    let each: Vec<ObservedCharge<'_>> = charges
        .iter()
        .zip(observed)
        .map(|(&(rule, cost), observed)| ObservedCharge::new(rule, cost, observed))
        .collect();
    let all_pass = each.iter().all(|charged| charged.judgement.passes());
    let after = each.iter().map(|charged| charged.after(mode, all_pass));
    let (states, figures): (Vec<_>, Vec<_>) = after.unzip();
    let judged = each.iter().zip(&figures);
    let judged = judged.map(|(charged, figures)| (charged.rule, &charged.judgement, figures));
    let at = observed.first().map_or(Nanos::ZERO, |observed| observed.at);
    (combine(at, judged), states)
}

struct ObservedCharge<'a> {
    rule: &'a Rule,
    cost: Cost,
    now: Nanos,
    judgement: Judgement,
    state: Option<State>,
    /// True if the state already includes the request.
    after: bool,
}

impl<'a> ObservedCharge<'a> {
    fn new(rule: &'a Rule, cost: Cost, observed: &Observation) -> Self {
        let (limit, now) = (rule.limit(), observed.at);
        let after = algorithm::of(limit).answers() == Answers::After;
        let state = match after {
            true if observed.undone => algorithm::decode_summary(limit, &observed.state)
                .and_then(|state| limit.refund(Some(state), now, now, cost)),
            true => algorithm::decode_summary(limit, &observed.state),
            false => algorithm::decode(limit, &observed.state, now),
        };
        let wait = || limit.step(state.clone(), now, cost, Mode::Peek).2.retry_after;
        let judgement = Judgement::new(rule, observed.verdict == ScriptVerdict::Allowed, wait);
        Self { rule, cost, now, judgement, state, after }
    }

    /// Returns the state and the figures after the decision.
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
        let observed = Observation::new;
        let time = Some(Nanos::new(1_700_000_000_000_007_000));
        assert_eq!(
            single(b"01700000000.7 ab c"),
            Some(Reply::Decided {
                time,
                observed: vec![observed(ScriptVerdict::Allowed, b"ab c")]
            })
        );
        assert_eq!(single(b"3 "), Some(Reply::Foreign { time: None, place: 0 }));
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
        assert_eq!(several(b"1700000000.7 3\x04"), Some(Reply::Foreign { time, place: 4 }));
        let past = Some(Reply::Expired { time: Nanos::new(1_700_000_000_000_007_000) });
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
