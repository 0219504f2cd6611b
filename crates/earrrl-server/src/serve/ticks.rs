//! What is looked at once a second.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// Ticks of a second; one that comes late puts the next ones off.
pub(super) fn each_second() -> Interval {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds
}
