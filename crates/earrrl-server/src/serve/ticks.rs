//! The timer for the checks that the server makes once a second.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// Returns a timer that ticks every second. After a late tick, the next one comes a full second
/// later.
pub(super) fn each_second() -> Interval {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds
}
