//! The timer of the checks that are made once a second.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// Returns a timer that ticks each second; a late tick delays the following ones.
pub(super) fn each_second() -> Interval {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds
}
