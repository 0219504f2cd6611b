//! The algorithms on Redis, one file each, beside the parts of its Lua script.
//!
//! Each file defines the parameters that the script reads, the format of a client's record, and how
//! counts are added to a record. The key of a record carries a tag, a hash of the algorithm and of the
//! parameters without which the record cannot be interpreted: under another half-life or window, clients
//! have other records. A record begins with a part of the microsecond at which it was made, which tells it
//! from a later one of the same key.
//! Times are in microseconds, and amounts in billionths of a unit
//! (in units for recent-average and exponential).

use std::time::Duration;

use earrrl::algorithm::{State, Visitor};
use earrrl::{Action, Cost, Limit, Mode, Nanos, Policy, Rule, RuleError};

mod average;
mod concurrent;
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

/// The largest count in units that a double holds exactly in billionths: 2^53 billionths.
const MAX_EXACT_UNITS: u64 = 9_007_199;

const STORES: u8 = 1;
const STRICT: u8 = 2;
const ENFORCES: u8 = 4;
/// The flag of a request for which a server asks for several units.
pub(crate) const UNITS: u8 = 32;

/// An algorithm whose clients' records are kept in Redis.
pub(crate) trait OnRedis {
    /// Returns the parameters without which a record cannot be interpreted. They determine its key.
    fn meaning(&self) -> [u64; 4];

    /// Returns the parameters that a charge depends on, so that it can be corrected only under the same ones.
    fn charge_meaning(&self) -> [u64; 4] {
        self.meaning()
    }

    /// Returns an error if Redis cannot count the limit exactly in whole microseconds. Requests are
    /// held back for at most `hold`.
    fn check(&self, _hold: Duration) -> Result<(), RuleError> {
        Ok(())
    }

    /// Writes the parameters that the script's part `parameters` reads.
    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed);

    /// Returns the length in bytes of the part of a time that a record begins with. It is 1 for the
    /// smallest records.
    fn born_len(&self) -> usize {
        4
    }

    /// Returns the state that a record holds at `now`.
    fn decode(&self, record: Fields<'_>, now: Nanos) -> Option<State>;

    /// Converts a state from one clock to another. Times and windows keep their distance from the
    /// present, which is `from` by the old clock and `to` by the new one. A state of another
    /// algorithm stays as it is.
    fn moved(&self, state: State, from: Nanos, to: Nanos) -> State;

    /// Returns which state the script reports: the record before the request, or the summary of the
    /// state after it, which the script's part `answer` computes.
    fn answers(&self) -> Answers {
        Answers::Before
    }

    /// Returns the state that a summary describes.
    fn summary(&self, _summary: Fields<'_>) -> Option<State> {
        None
    }

    /// Returns true if the counts of several nodes can be added up.
    fn adds(&self) -> bool {
        true
    }

    /// Returns the largest count in units that a record holds exactly; `None` if a record holds no
    /// count, but a measured rate or an instant.
    fn max_exact_units(&self) -> Option<u64> {
        Some(MAX_EXACT_UNITS)
    }

    /// Returns the adjustments that add one node's counts, with the total cost `sum`, to the
    /// client's record.
    fn adjustments(&self, counted: &State, sum: Cost, now: Nanos) -> Vec<Adjustment>;
}

/// The state that a script reports: the one before or after the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    Before,
    After,
}

/// A charge, for which [`OnRedis::parameters`] writes the script's parameters.
pub(crate) struct Terms<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) cost: Cost,
    /// 1 to charge the cost, -1 to take the charge back.
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

/// Returns the longest time for which a rule holds a request back; `None` if its action is not to
/// delay.
fn hold(rule: &Rule) -> Option<Duration> {
    match rule.action() {
        Action::Delay { max } => Some(max),
        _ => None,
    }
}

/// A correction of a record by `add.lua`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Adjustment {
    /// True if the cost is taken back, false if it is added.
    pub(crate) back: bool,
    /// True if the cost is taken back since it was counted twice.
    pub(crate) twice: bool,
    /// The microsecond of the request; below zero for the present time.
    pub(crate) when: f64,
    /// The time at which a bucket would be full after these charges alone, in microseconds and
    /// ticks.
    pub(crate) alone: (f64, f64),
    pub(crate) cost: Cost,
    /// True if the charges were decided while Redis could not be reached.
    pub(crate) without_redis: bool,
    /// The microsecond at which the client is as good as new, according to the node that decided while
    /// Redis could not be reached; 0 if it does not know.
    pub(crate) new_at: f64,
}

impl Adjustment {
    /// Returns an adjustment that adds a cost as of a microsecond.
    fn add(when: f64, billionths: u128) -> Self {
        let cost = Cost::from_billionths(billionths);
        Self {
            back: false,
            twice: false,
            when,
            alone: (0.0, 0.0),
            cost,
            without_redis: false,
            new_at: 0.0,
        }
    }

    /// Returns an adjustment that takes back a cost which was charged at an instant. The instant is
    /// rounded to the nearest microsecond: it was a whole one before it was converted to a double.
    pub(crate) fn take_back(charged_at: Option<Nanos>, cost: Cost, twice: bool) -> Self {
        let nearest = |at: Nanos| micros(Nanos::new(at.get().saturating_add(500)));
        let when = charged_at.map_or(-1.0, nearest);
        Self {
            back: true,
            twice,
            when,
            alone: (0.0, 0.0),
            cost,
            without_redis: false,
            new_at: 0.0,
        }
    }
}

/// Generates [`AlgorithmKind`] from the list of algorithms, each with its file and the letter at the end of
/// its keys. An algorithm's position in the list is its number in `several.lua` and part of
/// the tags in keys, so new algorithms are appended.
macro_rules! algorithms {
    ($($algorithm:ident $file:ident $letter:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub(crate) enum AlgorithmKind {
            $($algorithm),*
        }

        pub(crate) const KINDS: &[AlgorithmKind] = &[$(AlgorithmKind::$algorithm),*];

        impl AlgorithmKind {
            /// Returns the letter at the end of the algorithm's keys.
            pub(crate) fn letter(self) -> char {
                match self {
                    $(Self::$algorithm => $letter),*
                }
            }

            /// Returns the file with the parts of the algorithm's script.
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
                fn $file(self, limit: &'a earrrl::algorithm::$algorithm) -> Self::Out {
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
    Concurrent concurrent 'n',
}

impl AlgorithmKind {
    pub(crate) fn of(limit: &Limit) -> Self {
        limit.visit(ByLimit).0
    }
}

/// Returns the Redis implementation of a limit's algorithm.
pub(crate) fn of(limit: &Limit) -> &dyn OnRedis {
    limit.visit(ByLimit).1
}

/// Returns an error if Redis cannot count a rule exactly.
pub(crate) fn check(rule: &Rule) -> Result<(), RuleError> {
    of(rule.limit()).check(hold(rule).unwrap_or_default())
}

/// Returns the largest count of a limit in units that Redis stores exactly; `None` if the limit
/// counts no units.
///
/// ```
/// use earrrl::Rule;
/// use earrrl_redis::max_exact_units;
///
/// let counted: Rule = "fixed-window 60/1m".parse()?;
/// assert_eq!(max_exact_units(counted.limit()), Some(9_007_199));
/// let measured: Rule = "recent-average 1/s half-life=1m".parse()?;
/// assert_eq!(max_exact_units(measured.limit()), None);
/// # Ok::<(), earrrl::RuleError>(())
/// ```
pub fn max_exact_units(limit: &Limit) -> Option<u64> {
    of(limit).max_exact_units()
}

/// Returns the tag in the keys of a limit's records: a hash of the algorithm and of the parameters without which a
/// record cannot be interpreted.
pub(crate) fn tag(limit: &Limit) -> u32 {
    let (kind, algorithm) = limit.visit(ByLimit);
    hash(kind, algorithm.meaning())
}

/// Returns the tag of a limit's charges: a commit corrects a charge only under a limit with the same one.
pub(crate) fn charge_tag(limit: &Limit) -> u32 {
    let (kind, algorithm) = limit.visit(ByLimit);
    hash(kind, algorithm.charge_meaning())
}

fn hash(kind: AlgorithmKind, parameters: [u64; 4]) -> u32 {
    let numbers = [kind as u64].into_iter().chain(parameters);
    fnv32(numbers.flat_map(u64::to_le_bytes))
}

/// Returns a hash that is the same on every machine. It protects against nothing.
pub(crate) fn fnv32(bytes: impl Iterator<Item = u8>) -> u32 {
    let fnv = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (fnv ^ fnv >> 32) as u32
}

/// Returns a charge as an argument of a script: one packed string, which Lua unpacks in one call.
pub(crate) fn pack(terms: &Terms<'_>) -> Vec<u8> {
    let algorithm = of(terms.rule.limit());
    let mut packed = Packed(Vec::with_capacity(96));
    algorithm.parameters(terms, &mut packed);
    packed.0
}

/// Returns the flags of a charge. A charge of cost 0 stores nothing, like a peek.
pub(crate) fn flags(rule: &Rule, cost: Cost, mode: Mode) -> u8 {
    let stores = if mode == Mode::Peek || cost.is_zero() {
        0
    } else {
        STORES
    };
    let strict = mode == Mode::Charge || rule.limit().policy() == Policy::Strict;
    let strict = if strict { STRICT } else { 0 };
    stores
        | strict
        | if rule.action().enforces() {
            ENFORCES
        } else {
            0
        }
}

/// Returns the state that a record of this limit holds at `now`; `None` if the record is invalid.
pub(crate) fn decode(limit: &Limit, record: &[u8], now: Nanos) -> Option<State> {
    let algorithm = of(limit);
    algorithm.decode(Fields(record.get(algorithm.born_len()..)?), now)
}

/// Returns the state after a decision, given the summary that the script's part `answer` computed.
pub(crate) fn decode_summary(limit: &Limit, summary: &[u8]) -> Option<State> {
    of(limit).summary(Fields(summary))
}

/// Returns the part of a time that tells a client's record from a later one of the same key, given the state that a
/// script reported at `now`: the record before the request, or the summary of a tally after it.
pub(crate) fn born(limit: &Limit, reported: &[u8], now: Nanos) -> u32 {
    let algorithm = of(limit);
    let len = algorithm.born_len();
    let stored = match algorithm.answers() {
        Answers::Before => reported.get(..len),
        Answers::After => reported
            .len()
            .checked_sub(len)
            .and_then(|from| reported.get(from..)),
    };
    let of_now = now.get() / 1000 % (1 << (8 * len));
    let stored = stored.and_then(|bytes| Fields(bytes).whole(len));
    stored.unwrap_or(of_now) as u32
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
