//! The algorithms on Redis: one file each, beside its script.
//!
//! A file defines what its script reads, how a client's record is read and written, and how counts are added to it. A
//! record begins with a tag of the parameters that give it its meaning; times are microseconds, amounts billionths of
//! a unit (units in the two averages).

use std::time::Duration;

use earrrl::algorithm::{Moment, Visitor};
use earrrl::{Action, Cost, Limit, Mode, Nanos, Policy, Rule, RuleError, State};

mod average;
mod exponential;
mod fields;
mod fixed_window;
mod recent_average;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod tally;
mod token_bucket;

pub(crate) use fields::{FARTHEST, Fields, Packed, micros, nanos};

const STORES: u8 = 1;
const STRICT: u8 = 2;
const ENFORCES: u8 = 4;

/// An algorithm whose clients are kept in Redis.
pub(crate) trait OnRedis {
    /// Returns the parameters without which a record can't be read.
    fn meaning(&self) -> [u64; 4];

    /// Refuses a limit that Redis's whole microseconds can't count exactly. Requests are held for at most `hold`.
    fn check(&self, _hold: Duration) -> Result<(), RuleError> {
        Ok(())
    }

    /// Writes the parameters that the script's part `parameters` reads, after the tag.
    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed);

    /// Returns the length of the tag that a record begins with: 1 if every byte counts.
    fn tag_len(&self) -> usize {
        4
    }

    /// Returns true if a record with its tag can have this length.
    fn has_len(&self, len: usize) -> bool;

    /// Returns the state that a record holds at `now`.
    fn decode(&self, record: Fields<'_>, now: Nanos) -> Option<State>;

    /// Writes a state at `now`; returns `None` for a state of another algorithm.
    fn encode(&self, state: &State, now: Nanos, packed: &mut Packed) -> Option<()>;

    /// Moves a state to another clock: a time that was so much before or after `from` is as much before or after
    /// `to`, and so are windows. A state of another algorithm stays as it is.
    fn moved(&self, state: State, from: Nanos, to: Nanos) -> State;

    /// Returns when a record was stored, if nothing is known of the time before that.
    fn stored_at(&self, _record: Fields<'_>, _now: Nanos) -> Option<Nanos> {
        None
    }

    /// Returns the seconds for which a client that is as good as new is remembered.
    fn tail(&self) -> f64 {
        0.0
    }

    /// Returns whether the script reports the record before a request, or the part `answer`'s summary of the state
    /// after it.
    fn answers(&self) -> Answers {
        Answers::Before
    }

    /// Returns the state that a summary stands for.
    fn summary(&self, _summary: Fields<'_>) -> Option<State> {
        None
    }

    /// Returns true if what several nodes counted can be added up.
    fn adds(&self) -> bool;

    /// Returns the one time that a state consists of, if it does: such a state can be leased to the index of near
    /// clients, so that most decisions touch nothing else.
    fn moment<'a>(&self, state: &'a mut State) -> Option<&'a mut Moment>;

    /// Returns the adjustments that add what one node counted, `sum` in all, to the client's record.
    fn adjustments(&self, counted: &State, sum: Cost, now: Nanos) -> Vec<Adjustment>;

    /// Adds what one node counted to a state, as those adjustments add it to a record. States of another algorithm
    /// stay as they are.
    fn merged(&self, state: State, counted: &State, sum: Cost) -> State;

    /// Returns the headroom that a request takes, in the unit of the script's part `spare`.
    fn takes(&self, cost: Cost) -> f64 {
        cost.billionths() as f64
    }

    /// Returns the headroom that a request needs: less than it takes if the last request may exceed the limit.
    fn needs(&self, cost: Cost) -> f64 {
        self.takes(cost)
    }
}

/// The state that a script reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    Before,
    After,
}

/// A charge, as [`OnRedis::parameters`] writes it.
pub(crate) struct Terms<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) cost: Cost,
    /// 1, or -1 to take the charge back.
    pub(crate) sign: f64,
    pub(crate) linger: Duration,
}

impl Terms<'_> {
    fn units(&self) -> f64 {
        self.cost.as_f64() * self.sign
    }

    fn billionths(&self) -> f64 {
        self.cost.billionths() as f64 * self.sign
    }

    fn linger_ms(&self) -> f64 {
        self.linger.as_millis() as f64
    }

    fn hold(&self) -> Option<Duration> {
        hold(self.rule)
    }
}

/// Returns the longest time that a rule holds a request back, if it does.
fn hold(rule: &Rule) -> Option<Duration> {
    match rule.action() {
        Action::Delay { max } => Some(max),
        _ => None,
    }
}

/// A correction of a record by `near.lua`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Adjustment {
    /// True if the cost is taken back, false if it is added.
    pub(crate) back: bool,
    /// The microsecond of the request, or below zero for the present time.
    pub(crate) when: f64,
    /// For a bucket: the time at which it would be full after these charges alone.
    pub(crate) alone: (f64, f64),
    pub(crate) cost: Cost,
}

impl Adjustment {
    /// Adds a cost at a microsecond.
    fn add(when: f64, billionths: u128) -> Self {
        let cost = Cost::from_billionths(billionths);
        Self { back: false, when, alone: (0.0, 0.0), cost }
    }

    /// Takes a cost back that was charged at an instant. Rounds to the nearest microsecond, since the instant was a
    /// whole one before it became a double.
    pub(crate) fn take_back(charged_at: Option<Nanos>, cost: Cost) -> Self {
        let nearest = |at: Nanos| micros(Nanos::new(at.get().saturating_add(500)));
        let when = charged_at.map_or(-1.0, nearest);
        Self { back: true, when, alone: (0.0, 0.0), cost }
    }
}

/// The list of algorithms, each with its file and the letter that ends its keys. The position of one is its number in
/// `several.lua` and enters the tags of records, so new ones go to the end.
macro_rules! algorithms {
    ($($algorithm:ident $file:ident $letter:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub(crate) enum AlgorithmKind {
            $($algorithm),*
        }

        pub(crate) const KINDS: &[AlgorithmKind] = &[$(AlgorithmKind::$algorithm),*];

        impl AlgorithmKind {
            /// Returns the letter that ends the keys of its records.
            pub(crate) fn letter(self) -> char {
                match self {
                    $(Self::$algorithm => $letter),*
                }
            }

            /// Returns the file with the parts of its script.
            pub(crate) fn text(self) -> &'static str {
                match self {
                    $(Self::$algorithm => include_str!(concat!(stringify!($file), ".lua"))),*
                }
            }
        }

        struct ByLimit;

        impl<'a> Visitor<'a> for ByLimit {
            type Out = (AlgorithmKind, &'a dyn OnRedis);
            $(
                fn $file(self, limit: &'a earrrl::$algorithm) -> Self::Out {
                    (AlgorithmKind::$algorithm, limit)
                }
            )*
        }
    };
}

algorithms! {
    RecentAverage recent_average 'a',
    Exponential exponential 'e',
    TokenBucket token_bucket 'b',
    FixedWindow fixed_window 'f',
    SlidingLog sliding_log 'l',
    SlidingWindow sliding_window 'w',
    SlidingCounter sliding_counter 'c',
}

impl AlgorithmKind {
    pub(crate) fn of(limit: &Limit) -> Self {
        limit.visit(ByLimit).0
    }
}

/// Returns the implementation of a limit's algorithm.
pub(crate) fn of(limit: &Limit) -> &dyn OnRedis {
    limit.visit(ByLimit).1
}

/// Refuses a rule that Redis can't count exactly.
pub(crate) fn check(rule: &Rule) -> Result<(), RuleError> {
    of(rule.limit()).check(hold(rule).unwrap_or_default())
}

/// Returns a stable number of everything that gives a record its meaning: the algorithm and the parameters without
/// which its state can't be read. A record with another tag is converted before use.
pub(crate) fn tag(limit: &Limit) -> u32 {
    let (kind, algorithm) = limit.visit(ByLimit);
    let bytes = [kind as u64].into_iter().chain(algorithm.meaning()).flat_map(u64::to_le_bytes);
    let fnv = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (fnv ^ fnv >> 32) as u32
}

/// Returns the script's argument for a charge: one packed string, which Lua reads in one call. It begins with the tag
/// of the rule's records.
pub(crate) fn pack(terms: &Terms<'_>, tag: u32) -> Vec<u8> {
    let algorithm = of(terms.rule.limit());
    let mut packed = Packed(Vec::with_capacity(96));
    packed.whole(tag.into(), algorithm.tag_len());
    algorithm.parameters(terms, &mut packed);
    packed.0
}

/// Returns the flags of a charge. Cost 0 is judged and stores nothing, as a peek does.
pub(crate) fn flags(rule: &Rule, cost: Cost, mode: Mode) -> u8 {
    let stores = if mode == Mode::Peek || cost.is_zero() { 0 } else { STORES };
    let strict = mode == Mode::Charge || rule.limit().policy() == Policy::Strict;
    let strict = if strict { STRICT } else { 0 };
    stores | strict | if rule.action().enforces() { ENFORCES } else { 0 }
}

/// Returns the state that a record of this limit holds at `now`; `None` if it holds none.
pub(crate) fn decode(limit: &Limit, record: &[u8], now: Nanos) -> Option<State> {
    let algorithm = of(limit);
    algorithm.decode(Fields(record.get(algorithm.tag_len()..)?), now)
}

/// Returns the state after a decision, from the summary of the script's part `answer`.
pub(crate) fn decode_summary(limit: &Limit, summary: &[u8]) -> Option<State> {
    of(limit).summary(Fields(summary))
}

/// Returns the record of a state at `now`, with its tag.
pub(crate) fn encode(limit: &Limit, tag: u32, state: &State, now: Nanos) -> Option<Vec<u8>> {
    let (algorithm, mut packed) = (of(limit), Packed::default());
    packed.whole(tag.into(), algorithm.tag_len());
    algorithm.encode(state, now, &mut packed)?;
    Some(packed.0)
}

/// Returns true if a record is of this limit, by its tag and by its length.
pub(crate) fn is_of(limit: &Limit, tag: u32, record: &[u8]) -> bool {
    let algorithm = of(limit);
    algorithm.has_len(record.len()) && record.starts_with(&tag.to_le_bytes()[..algorithm.tag_len()])
}

/// Returns when an average was stored: nothing is known of the time before that.
pub(crate) fn stored_at(limit: &Limit, record: &[u8], now: Nanos) -> Option<Nanos> {
    let algorithm = of(limit);
    algorithm.stored_at(Fields(record.get(algorithm.tag_len()..)?), now)
}

/// Returns how long a record of `state` must live: until nothing in it can change a decision.
pub(crate) fn life(limit: &Limit, state: &State, now: Nanos) -> Duration {
    let (_, _, report) = limit.step(Some(state.clone()), now, Cost::ZERO, Mode::Peek);
    report.reset_after.saturating_add(Duration::from_secs_f64(of(limit).tail()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_records_that_are_in_redis_stay() {
        for (text, expected) in [
            ("recent-average 1/s period=60s", 0x7240_1ca0),
            ("exponential 60/1m", 0x4628_8983),
            ("fixed-window 60/1m", 0x7a1f_7c7f),
            ("sliding-log 60/1m", 0xe3cd_8b22),
            ("sliding-window 600/1h sub-windows=60", 0xb77f_0efe),
            ("sliding-counter 60/1m", 0xa02f_f06a),
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(tag(rule.limit()), expected, "{text}");
        }
    }
}
