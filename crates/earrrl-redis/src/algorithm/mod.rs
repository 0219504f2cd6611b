//! The algorithms on Redis: here what they have in common, and beside it the format of the records of each, with a file
//! `<name>.lua` that has the parts of its scripts.
//!
//! An algorithm defines the parameters that the script reads, and the format of a client's record. The key of a record carries a tag, a hash of the algorithm and of the
//! parameters without which the record cannot be interpreted: under another half-life or window, clients
//! have other records. A record begins with a part of the microsecond at which it was made, which tells it
//! from a later one of the same key.
//! Times are in microseconds, and amounts in billionths of a unit
//! (in units for recent-average and exponential).

use std::time::Duration;

use earrrl::algorithm::{
    Moment, State, Tally, TokenBucket, Visitor, Waits, fixed_window::Count,
    sliding_counter::WindowCounts,
};
use earrrl::{Action, Cost, Limit, Mode, Nanos, Policy, Rule, RuleError};

mod averages;
mod fields;
mod tally;
mod token_bucket;
mod windows;

use fields::in_two;
pub(crate) use fields::{FARTHEST, Fields, Packed, micros, nanos};

/// The largest count in units that a double holds exactly in billionths: 2^53 billionths.
const MAX_EXACT_UNITS: u64 = 9_007_199;

const STORES: u8 = 1;
const STRICT: u8 = 2;
const ENFORCES: u8 = 4;
/// The flag of charges that `hold.lua` answers as allowed even if they are not.
const ANSWERED_AS_ALLOWED: u8 = 16;
/// The flag of a request that gets a place in the queue if it is denied.
const QUEUES: u8 = 32;
/// The flag of a request for which a server asks for several units.
pub(crate) const UNITS: u8 = 64;

/// An algorithm whose clients' records are kept in Redis.
pub(crate) trait OnRedis {
    /// Returns what a charge depends on beside [`Limit::meaning`], so that it can be corrected only under the same
    /// parameters.
    fn charge_meaning(&self) -> [u64; 3] {
        [0; 3]
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

    /// Returns the state that a script reported at `now`: the record without the time at which it was made, or the
    /// summary of a tally.
    fn decode(&self, reported: Fields<'_>, now: Nanos) -> Option<State>;

    /// Returns the slot of an instant: the index of a window, or the instant itself.
    fn slot_of(&self, now: Nanos) -> u64 {
        now.get()
    }

    /// Returns the first microsecond of a slot.
    fn begins(&self, slot: u64) -> f64 {
        micros(Nanos::new(slot))
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
}

/// A charge, for which [`OnRedis::parameters`] writes the script's parameters.
pub(crate) struct Terms<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) cost: Cost,
    /// 1 to charge the cost, -1 to take the charge back.
    pub(crate) sign: f64,
    pub(crate) linger: Duration,
    /// The time that the script will use, as far as this node knows. Calendars are sent as the periods around it.
    pub(crate) now: Nanos,
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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Adjustment {
    pub(crate) kind: AdjustmentKind,
    /// The microsecond of the request; below zero for the present time.
    pub(crate) when: f64,
    /// The time at which a bucket would be full after these charges alone, in microseconds and
    /// ticks.
    pub(crate) alone: (f64, f64),
    pub(crate) cost: Cost,
    /// The microsecond at which the client is as good as new, according to the node that decided while
    /// Redis could not be reached; 0 if it does not know.
    pub(crate) new_at: f64,
    /// The record that was charged for units that were not spent.
    pub(crate) born: u32,
}

/// The kinds of adjustments, with their numbers in `add.lua`. Those with odd numbers take a cost back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum AdjustmentKind {
    Charge = 1,
    #[default]
    Add = 2,
    CountedTwice = 3,
    Unspent = 5,
}

impl Adjustment {
    /// Returns an adjustment that adds a cost as of a microsecond.
    fn add(when: f64, billionths: u128) -> Self {
        Self {
            when,
            cost: Cost::from_billionths(billionths),
            ..Self::default()
        }
    }

    /// Returns an adjustment that takes back a cost which was charged at an instant, and which was counted twice if
    /// `twice` is true. The instant is rounded to the nearest microsecond: it was a whole one before it was
    /// converted to a double.
    pub(crate) fn take_back(charged_at: Option<Nanos>, cost: Cost, twice: bool) -> Self {
        let nearest = |at: Nanos| micros(Nanos::new(at.get().saturating_add(500)));
        Self {
            kind: match twice {
                true => AdjustmentKind::CountedTwice,
                false => AdjustmentKind::Charge,
            },
            when: charged_at.map_or(-1.0, nearest),
            cost,
            ..Self::default()
        }
    }

    /// Returns the sign of the cost: -1 if it is taken back.
    pub(crate) fn sign(&self) -> f64 {
        match self.kind {
            AdjustmentKind::Add => 1.0,
            _ => -1.0,
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

    /// Returns true if the records are tallies, of which scripts report a summary of the state after the request.
    pub(crate) fn is_tally(self) -> bool {
        matches!(
            self,
            Self::SlidingLog | Self::SlidingWindow | Self::Concurrent
        )
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
    hash(limit, &[0; 2])
}

/// Returns the tag of a limit's charges: a commit corrects a charge only under a limit with the same one.
pub(crate) fn charge_tag(limit: &Limit) -> u32 {
    hash(limit, &of(limit).charge_meaning())
}

fn hash(limit: &Limit, more: &[u64]) -> u32 {
    let kind = AlgorithmKind::of(limit) as u64;
    let meaning = limit.meaning().1;
    let numbers = [kind].into_iter().chain(meaning);
    fnv32(
        numbers
            .chain(more.iter().copied())
            .flat_map(u64::to_le_bytes),
    )
}

/// Returns a hash that is the same on every machine. It protects against nothing.
pub(crate) fn fnv32(bytes: impl Iterator<Item = u8>) -> u32 {
    let fnv = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (fnv ^ fnv >> 32) as u32
}

/// Returns the flags of a charge. A charge of cost 0 stores nothing, like a peek.
pub(crate) fn flags(rule: &Rule, cost: Cost, mode: Mode) -> u8 {
    let limit = rule.limit();
    let all = [
        (STORES, mode != Mode::Peek && !cost.is_zero()),
        (
            STRICT,
            mode == Mode::Charge || limit.policy() == Policy::Strict,
        ),
        (ENFORCES, rule.action().enforces()),
        (ANSWERED_AS_ALLOWED, rule.action() == Action::ShadowBan),
        (QUEUES, mode == Mode::Check && limit.waits() == Waits::Queue),
    ];
    all.iter()
        .map(|(flag, is_set)| flag * u8::from(*is_set))
        .sum()
}

/// Returns the state that a script has reported: the record before the request, or the summary of a tally after it;
/// `None` if that is invalid.
pub(crate) fn reported(limit: &Limit, reported: &[u8], now: Nanos) -> Option<State> {
    let (kind, algorithm) = limit.visit(ByLimit);
    let born = match kind.is_tally() {
        true => 0,
        false => algorithm.born_len(),
    };
    algorithm.decode(Fields(reported.get(born..)?), now)
}

/// Returns the part of a time that tells a client's record from a later one of the same key, given what a
/// script reported at `now`. A summary ends with it.
pub(crate) fn born(limit: &Limit, reported: &[u8], now: Nanos) -> u32 {
    let (kind, algorithm) = limit.visit(ByLimit);
    let len = algorithm.born_len();
    let from = match kind.is_tally() {
        true => reported.len().saturating_sub(len),
        false => 0,
    };
    let of_now = now.get() / 1000 % (1 << (8 * len));
    Fields(&reported[from..]).whole(len).unwrap_or(of_now) as u32
}

/// Converts a state from one clock to another. Times and windows keep their distance from the
/// present, which is `from` by the old clock and `to` by the new one.
pub(crate) fn moved(limit: &Limit, state: State, from: Nanos, to: Nanos) -> State {
    let algorithm = of(limit);
    let by = i128::from(algorithm.slot_of(to)) - i128::from(algorithm.slot_of(from));
    let slot = |slot: u64| u64::try_from((i128::from(slot) + by).max(0)).unwrap_or(u64::MAX);
    let tally =
        |tally: Tally| Tally::from_entries(tally.entries().map(|(at, cost)| (slot(at), cost)));
    match (limit, state) {
        (Limit::RecentAverage(average), State::RecentAverage(moment)) => {
            State::RecentAverage(average.moved(moment, by))
        }
        (Limit::Exponential(exponential), State::Exponential(measured)) => {
            State::Exponential(exponential.moved(measured, by))
        }
        (_, State::TokenBucket(Moment(ticks))) => {
            State::TokenBucket(Moment(ticks + by * TokenBucket::TICKS_PER_NANO))
        }
        (_, State::FixedWindow(Count { window, count })) => State::FixedWindow(Count {
            window: slot(window),
            count,
        }),
        (_, State::SlidingCounter(counts)) => State::SlidingCounter(WindowCounts {
            window: slot(counts.window),
            ..counts
        }),
        (_, State::SlidingLog(log)) => State::SlidingLog(tally(log)),
        (_, State::SlidingWindow(window)) => State::SlidingWindow(tally(window)),
        (_, State::Concurrent(places)) => State::Concurrent(tally(places)),
        (_, state) => state,
    }
}

/// Returns the adjustments that add one node's counts, with the total cost `sum`, to the client's record.
pub(crate) fn adjustments(
    limit: &Limit,
    counted: &State,
    sum: Cost,
    now: Nanos,
) -> Vec<Adjustment> {
    let at = |slot: u64, cost: u128| Adjustment::add(of(limit).begins(slot), cost);
    match (limit, counted) {
        (Limit::RecentAverage(average), State::RecentAverage(moment)) => {
            let count = average.count(Some(moment), now);
            if count >= 1.0 || count <= 0.0 {
                return vec![Adjustment::add(-1.0, (count * 1e9) as u128)];
            }
            // A billionth of a unit is too coarse for a count that has decayed, so the count is sent
            // with the time at which it was 1.
            let age = Duration::from_secs_f64((-count.ln() * average.period_secs()).min(1e9));
            let micro = now.get().saturating_sub(age.as_nanos() as u64) / 1000;
            let then = average.count(Some(moment), Nanos::new(micro * 1000));
            vec![Adjustment::add(micro as f64, (then * 1e9) as u128)]
        }
        (_, State::TokenBucket(full_at)) => vec![Adjustment {
            alone: in_two(full_at.0),
            ..Adjustment::add(-1.0, sum.billionths())
        }],
        (_, State::FixedWindow(Count { window, count })) => vec![at(*window, *count)],
        (_, State::SlidingCounter(counts)) => vec![
            at(counts.window.saturating_sub(1), counts.previous),
            at(counts.window, counts.current),
        ],
        (_, State::SlidingLog(tally) | State::SlidingWindow(tally) | State::Concurrent(tally)) => {
            tally.entries().map(|(slot, cost)| at(slot, cost)).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_records_that_are_in_redis_stay() {
        for (text, expected) in [
            ("recent-average 1/s period=60s", 0x5906_6f9a),
            ("exponential 60/1m", 0x58df_c9a7),
            ("fixed-window 60/1m", 0x7a1f_7c7f),
            ("sliding-log 60/1m", 0x128e_5db8),
            ("sliding-window 600/1h sub-windows=60", 0xb77f_0efe),
            ("sliding-counter 60/1m", 0xa02f_f06a),
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(tag(rule.limit()), expected, "{text}");
        }
    }
}
