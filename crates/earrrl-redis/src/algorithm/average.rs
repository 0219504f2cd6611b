//! The lifetime in Redis of the records of recent-average and exponential.

/// The share of the limit at which an average is dropped. A smaller average is below the tolerance
/// of decisions.
const FORGOTTEN: f64 = 1e-9;
/// The multiple of the limit up to which averages are dropped within the same time.
pub(super) const MANY: f64 = 100.0;

pub(super) struct Life {
    pub(super) step: f64,
    pub(super) lives: f64,
}

/// Returns the microseconds after which an average's expiry is renewed, and the milliseconds in
/// which an average of [`MANY`] times the limit decays to [`FORGOTTEN`] of it.
pub(super) fn life(period: f64, linger_ms: f64) -> Life {
    let step = (2.0 * period).ceil();
    let lives = (period * (MANY / FORGOTTEN).ln() + step) / 1e3;
    Life {
        step,
        lives: lives + linger_ms,
    }
}
