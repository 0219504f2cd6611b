//! The units that Redis has granted to this node for the clients of a near rule, and what may be done with them.
//!
//! Redis charges units when it grants them, and they are spent later. What servers admit together is at most what one
//! place admits if each unit is spent where it would still fit. Therefore
//! - a bucket's units shrink: no more are used than the bucket cannot have refilled since the call was sent;
//! - an average is charged for each unit what it would count at the end of the lease, and the next call replaces
//!   that by what was spent;
//! - a window's units are used within the window or sub-window that was charged, and the next call gives the rest back.
//!
//! A lease counts from the sending of the call, by this node's own clock. What a node loses (by its end, an evicted
//! line or a lost answer) is denied to the client, never given twice.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use earrrl::algorithm::State;
use earrrl::internal::lock;
use earrrl::{Action, Cost, Limit, Mode, Nanos, Rule, RuleError};
use lru::LruCache;

use crate::algorithm::{self, Adjustment, AdjustmentKind, micros};
use crate::batches::UnitsWanted;

/// The longest lease of units.
const LONGEST_LEASE: Duration = Duration::from_secs(60);
/// The part of a window, or of an average's period, for which a lease lasts.
const LEASES: u32 = 8;
/// The most units of one call.
const MOST: f64 = 10_000.0;
const SHARDS: usize = 64;
/// The billionths of a unit.
pub(crate) const UNIT: f64 = 1e9;

/// Checks that a rule's clients can be decided without a round trip to Redis.
///
/// ```
/// use earrrl_redis::check_near;
///
/// assert!(check_near(&"token-bucket 100 refill=10/s".parse()?).is_ok());
/// assert!(check_near(&"exponential 500/1d".parse()?).is_err());
/// # Ok::<(), earrrl::RuleError>(())
/// ```
///
/// # Errors
/// Returns an error if the counts of several nodes cannot be added up, or if the action is to
/// delay.
pub fn check_near(rule: &Rule) -> Result<(), RuleError> {
    let wrong = |problem: &str| Err(RuleError::new(problem.to_owned()).of("consistency"));
    if rule.limit().is_concurrent() {
        return wrong("concurrent is always exact");
    }
    if !algorithm::of(rule.limit()).adds() {
        return wrong("near is not for exponential: what several nodes counted can't be added up");
    }
    if let Action::Delay { .. } = rule.action() {
        return wrong("near is not for the action delay: requests of all nodes are in one queue");
    }
    Ok(())
}

/// The way in which a limit's units may be spent after they were charged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Units {
    /// As many as the bucket cannot have refilled, at this many a second.
    Bucket { rate: f64, burst: f64 },
    /// Each at its value at the end of a lease, `value` times one at present. `period` is in seconds.
    Average { period: f64, value: f64 },
    /// In the window, or the one of its parts, that was charged. `window` is in nanoseconds.
    Window { window: u64, parts: u64 },
    /// None: every request is asked for.
    None,
}

impl Units {
    fn of(limit: &Limit) -> Self {
        let window = |window, parts| Self::Window { window, parts };
        match limit {
            Limit::TokenBucket(bucket) => Self::Bucket {
                rate: bucket.refill().per_second_f64(),
                burst: bucket.capacity().as_f64(),
            },
            Limit::RecentAverage(average) => {
                let period = average.period_secs();
                let value = (LONGEST_LEASE.as_secs_f64() / period).min(1.0 / f64::from(LEASES));
                Self::Average {
                    period,
                    value: value.exp(),
                }
            }
            Limit::FixedWindow(limit) => window(limit.window_nanos(), 1),
            Limit::SlidingCounter(limit) => window(limit.window_nanos(), 1),
            Limit::SlidingWindow(limit) => window(limit.window_nanos(), limit.sub_windows()),
            _ => Self::None,
        }
    }
}

/// A part of the clients of a near rule, the least recently used last.
type Shard = Mutex<LruCache<Box<[u8]>, Line>>;

/// The clients of a near rule, a bounded number. A line may be evicted at any time: its units are then lost.
#[derive(Debug)]
pub(crate) struct NearTable {
    shards: Box<[Shard]>,
    hasher: RandomState,
    pub(crate) units: Units,
    /// The time in which a client's pace is measured, and the longest lease of units.
    pub(crate) lease: Duration,
}

/// The line of a client in the table.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) group: usize,
    /// The units that are left, and until when they may be spent: a bucket's until it would be full.
    pub(crate) units: u32,
    pub(crate) sent: Nanos,
    pub(crate) ends: Nanos,
    /// The charge for the units after the first, in units of the average, and the value of those that were spent, both
    /// as of `granted_at` by Redis's clock. `born` is the record that was charged.
    pub(crate) charged: f64,
    pub(crate) spent: f64,
    pub(crate) granted_at: Nanos,
    pub(crate) born: u32,
    pub(crate) denied_until: Nanos,
    /// The time until which a request is denied that finds no unit and is not answered in time.
    pub(crate) wary_until: Nanos,
    /// The requests in a lease, as a decaying count, and the time of the last one.
    pace: f64,
    last: Nanos,
    /// The client's state as Redis has reported it, with what was spent here since.
    pub(crate) state: Option<State>,
    /// True while a call for units is under way.
    pub(crate) asking: bool,
}

impl Line {
    pub(crate) fn new(group: usize) -> Self {
        Self {
            group,
            ..Self::default()
        }
    }

    /// Returns the number of units that may be spent at `local`, by this node's clock.
    pub(crate) fn live(&self, units: Units, local: Nanos) -> u32 {
        if local >= self.ends {
            return 0;
        }
        match units {
            Units::Bucket { rate, .. } => {
                let left = self.ends.since(local).as_secs_f64() * rate;
                self.units.min(left as u32)
            }
            _ => self.units,
        }
    }

    /// Notes a request in the client's pace.
    pub(crate) fn note(&mut self, lease: Duration, local: Nanos) {
        let passed = local.since(self.last).as_secs_f64() / lease.as_secs_f64();
        self.pace = self.pace * (-passed).exp() + 1.0;
        self.last = self.last.max(local);
    }

    /// Spends some of the `live` units at `local`. Those that are not live are lost.
    pub(crate) fn spend(&mut self, units: Units, live: u32, count: u32, local: Nanos) {
        self.units = live - count;
        if let Units::Average { period, .. } = units {
            // The call was executed after it was sent, so this is no less than the value then.
            let value = (local.since(self.sent).as_secs_f64() / period).exp();
            self.spent += f64::from(count) * value;
        }
    }

    /// Returns the adjustment that takes back what was charged for units that were not spent.
    fn unspent(&self, units: Units) -> Adjustment {
        let unspent = match units {
            Units::Average { .. } => (self.charged - self.spent).max(0.0),
            Units::Window { .. } => f64::from(self.units),
            Units::Bucket { .. } | Units::None => 0.0,
        };
        Adjustment {
            kind: AdjustmentKind::Unspent,
            when: micros(self.granted_at),
            cost: Cost::from_billionths((unspent * UNIT) as u128),
            born: self.born,
            ..Adjustment::default()
        }
    }

    /// Ends the lease and begins a call for units, which gives back those that were not spent.
    pub(crate) fn begin(&mut self, units: Units, local: Nanos) -> UnitsWanted {
        let want = match units {
            Units::None => 1.0,
            _ => self.pace.round().clamp(1.0, MOST),
        };
        self.asking = true;
        self.ends = local;
        UnitsWanted {
            want: want as u16,
            unspent: self.unspent(units),
        }
    }

    /// Notes that what was not spent was given back, or can be no more.
    pub(crate) fn end_grant(&mut self) {
        self.units = 0;
        self.charged = 0.0;
        self.spent = 0.0;
    }
}

impl NearTable {
    pub(crate) fn new(rule: &Rule, capacity: usize) -> Self {
        let each = NonZeroUsize::new(capacity.div_ceil(SHARDS)).unwrap_or(NonZeroUsize::MIN);
        let limit = rule.limit();
        let lease = match Units::of(limit) {
            Units::Average { period, .. } => Duration::from_secs_f64(period) / LEASES,
            Units::Bucket { rate, burst } => {
                Duration::try_from_secs_f64(burst / rate).unwrap_or(LONGEST_LEASE)
            }
            Units::Window { window, .. } => Duration::from_nanos(window) / LEASES,
            Units::None => LONGEST_LEASE,
        };
        Self {
            shards: (0..SHARDS)
                .map(|_| Mutex::new(LruCache::new(each)))
                .collect(),
            hasher: RandomState::new(),
            units: Units::of(limit),
            lease: lease.clamp(Duration::from_micros(1), LONGEST_LEASE),
        }
    }

    pub(crate) fn shard(&self, key: &[u8]) -> MutexGuard<'_, LruCache<Box<[u8]>, Line>> {
        let shard = self.hasher.hash_one(key) as usize % SHARDS;
        lock(&self.shards[shard])
    }

    /// Calls a function with a client's line, if there is one.
    pub(crate) fn with<R>(&self, key: &[u8], change: impl FnOnce(&mut Line) -> R) -> Option<R> {
        self.shard(key).get_mut(key).map(change)
    }

    /// Ends the leases of all clients about which no call is under way. Returns the adjustments that take back what was
    /// charged for units that were not spent.
    pub(crate) fn end_all(&self) -> Vec<(Box<[u8]>, Adjustment)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            for (key, line) in shard.iter_mut().filter(|(_, line)| !line.asking) {
                let back = line.unspent(self.units);
                if !back.cost.is_zero() {
                    all.push((key.clone(), back));
                }
                line.end_grant();
            }
        }
        all
    }

    /// Returns the time for which units may be spent after they were granted at `at`, when the client got the state
    /// `charged`.
    pub(crate) fn good_for(&self, limit: &Limit, charged: Option<State>, at: Nanos) -> Duration {
        let (_, _, charged) = limit.step(charged, at, Cost::ZERO, Mode::Peek);
        match self.units {
            Units::Bucket { .. } => charged.reset_after,
            Units::Window { window, parts } => {
                if let Limit::FixedWindow(_) = limit {
                    return self.lease.min(charged.reset_after);
                }
                let window = u128::from(window);
                let parts = u128::from(parts);
                let at = u128::from(at.get());
                let ends = (at * parts / window + 1) * window / parts;
                let rest = u64::try_from(ends - at).unwrap_or(0);
                self.lease.min(Duration::from_nanos(rest))
            }
            Units::Average { .. } | Units::None => self.lease,
        }
    }

    /// Forgets a client that was reset. Its units are lost.
    pub(crate) fn forget(&self, key: &[u8]) {
        self.shard(key).pop(key);
    }
}
