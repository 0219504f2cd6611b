//! The lifetime of records of the two averages.

/// The share of the limit at which an average is forgotten: less than the tolerance changes no decision.
const FORGOTTEN: f64 = 1e-9;
/// Averages of up to this many times the limit are forgotten within the same time.
pub(super) const MANY: f64 = 100.0;

pub(super) struct Life {
    pub(super) step: f64,
    pub(super) lives: f64,
}

/// Returns the whole microseconds between changes of an average's expiry, and the milliseconds after which an average
/// of [`MANY`] times the limit has come down to [`FORGOTTEN`].
pub(super) fn life(period: f64, linger_ms: f64) -> Life {
    let step = (2.0 * period).ceil();
    let lives = (period * (MANY / FORGOTTEN).ln() + step) / 1e3;
    Life { step, lives: lives + linger_ms }
}
