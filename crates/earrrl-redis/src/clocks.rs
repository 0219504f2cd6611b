//! The clocks of decisions: this node's clock, callers' times, and the offset of Redis's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use earrrl::{Clock, Nanos};

/// A clock of whole microseconds, the resolution of Redis's clock. So a charge that this node makes alone
/// is found by its time once it is in Redis.
pub(crate) struct WholeMicros(pub(crate) Arc<dyn Clock>);

impl Clock for WholeMicros {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.now().get() / 1000 * 1000)
    }
}

pub(crate) struct Clocks {
    /// This node's clock.
    pub(crate) clock: Arc<dyn Clock>,
    /// The offset of Redis's clock from this node's, for each breaker's group.
    pub(crate) offsets: Vec<Offset>,
    /// The latest microsecond that a caller gave.
    latest: AtomicU64,
}

impl Clocks {
    pub(crate) fn new(clock: Arc<dyn Clock>, groups: usize) -> Self {
        let offsets = (0..groups).map(|_| Offset::default()).collect();
        Self {
            clock,
            offsets,
            latest: AtomicU64::new(0),
        }
    }

    /// Returns a caller's time in whole microseconds, raised to the latest time that any caller
    /// gave.
    pub(crate) fn given(&self, now: Option<Nanos>) -> Option<Nanos> {
        let now = now?.get() / 1000 * 1000;
        Some(Nanos::new(
            self.latest.fetch_max(now, Ordering::AcqRel).max(now),
        ))
    }

    /// Returns this node's time.
    pub(crate) fn local(&self) -> Nanos {
        self.clock.now()
    }

    /// Returns the time to use if Redis is not asked: the caller's time, or else this node's.
    pub(crate) fn now(&self, given: Option<Nanos>) -> Nanos {
        given.unwrap_or_else(|| self.local())
    }

    /// Returns the time that a script will use, as far as this node knows: the caller's, or else that of Redis.
    pub(crate) fn present(&self, group: usize, given: Option<Nanos>) -> Nanos {
        given.unwrap_or_else(|| self.redis(group, self.local()))
    }

    /// Converts an instant of this node's clock to Redis's time.
    pub(crate) fn redis(&self, group: usize, local: Nanos) -> Nanos {
        let ahead = self.offsets[group].get();
        Nanos::new(local.get().saturating_add_signed(ahead))
    }
}

/// The nanoseconds by which Redis's clock is ahead of this node's. The offset changes only if an
/// answer proves it wrong, so it stays exactly 0 between machines whose clocks agree.
#[derive(Debug, Default)]
pub(crate) struct Offset(AtomicI64);

impl Offset {
    /// Updates the offset by an answer: Redis's clock showed `at` at an instant between `sent` and
    /// `received`.
    pub(crate) fn learn(&self, at: Nanos, sent: Nanos, received: Nanos) {
        let ahead = |of: Nanos| at.get() as i64 - of.get() as i64;
        // Redis reports whole microseconds, so its time may be up to 1000 ns later than reported.
        let least = ahead(received);
        let most = ahead(sent).saturating_add(1000);
        let known = self.get();
        let new = known.clamp(least.min(most), most);
        if new != known {
            self.0.store(new, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_microseconds() {
        let clock = Arc::new(earrrl::ManualClock::new(Nanos::new(
            1_800_000_000_123_456_789,
        )));
        let clocks = Clocks::new(Arc::new(WholeMicros(clock)), 1);
        let whole = Nanos::new(1_800_000_000_123_456_000);
        assert_eq!((clocks.local(), clocks.now(None)), (whole, whole));
        assert_eq!(clocks.given(Some(Nanos::new(1999))), Some(Nanos::new(1000)));
    }

    #[test]
    fn it_moves_only_when_it_can_not_be_right() {
        let offset = Offset::default();
        let learn = |at, sent, received| {
            offset.learn(Nanos::new(at), Nanos::new(sent), Nanos::new(received));
            offset.get()
        };
        assert_eq!(learn(1_000_500_000, 1_000_400_000, 1_000_900_000), 0);
        assert_eq!(
            learn(3_000_000_000, 2_000_000_000, 2_000_100_000),
            999_900_000
        );
        assert_eq!(
            learn(3_100_000_000, 2_100_000_000, 2_200_000_000),
            999_900_000,
            "a slow answer"
        );
        assert_eq!(
            learn(3_300_000_000, 2_300_050_000, 2_300_060_000),
            999_940_000,
            "a quick one"
        );
        assert_eq!(
            learn(1_000_000_000, 2_500_000_000, 2_500_000_000),
            -1_499_999_000,
            "set back"
        );
    }
}
