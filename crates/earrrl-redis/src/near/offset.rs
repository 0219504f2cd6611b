//! How far Redis's clock is ahead of this node's.

use std::sync::atomic::{AtomicI64, Ordering};

use earrrl::Nanos;

/// In nanoseconds. It stays as it is for as long as it can be right: of machines whose clocks agree, it is
/// exactly nothing.
#[derive(Debug, Default)]
pub(crate) struct Offset(AtomicI64);

impl Offset {
    /// Redis's clock showed `at` at some instant between two of this node's.
    pub(crate) fn learn(&self, at: Nanos, sent: Nanos, received: Nanos) {
        let ahead = |of: Nanos| at.get() as i64 - of.get() as i64;
        // Redis tells whole microseconds.
        let (least, most) = (ahead(received), ahead(sent).saturating_add(1000));
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

/// An instant, so many nanoseconds later.
pub(crate) fn later(now: Nanos, by: i64) -> Nanos {
    Nanos::new(now.get().saturating_add_signed(by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_only_when_it_can_not_be_right() {
        let offset = Offset::default();
        let learn = |at, sent, received| {
            offset.learn(Nanos::new(at), Nanos::new(sent), Nanos::new(received));
            offset.get()
        };
        assert_eq!(learn(1_000_500_000, 1_000_400_000, 1_000_900_000), 0);
        assert_eq!(learn(3_000_000_000, 2_000_000_000, 2_000_100_000), 999_900_000);
        assert_eq!(
            learn(3_100_000_000, 2_100_000_000, 2_200_000_000),
            999_900_000,
            "a slow answer"
        );
        assert_eq!(learn(3_300_000_000, 2_300_050_000, 2_300_060_000), 999_940_000, "a quick one");
        assert_eq!(learn(1_000_000_000, 2_500_000_000, 2_500_000_000), -1_499_999_000, "set back");
    }
}
