//! The precision that an engine promises, and the error for an answer that violates it.

use std::fmt;
use std::time::Duration;

use earrrl::Cost;

/// The precision that an engine promises.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The step of the engine's clock. All instants of the suite are multiples of it.
    pub step: Duration,
    /// The greatest relative error of the engine's rates.
    pub rate_tolerance: f64,
    /// The greatest quota that the engine counts exactly.
    pub largest_quota: Cost,
    /// True if the engine supports [`Mode::Charge`](earrrl::Mode::Charge).
    pub charges: bool,
}

impl Profile {
    /// The profile of engines in memory: steps of a nanosecond, errors of 1e-9, any quota.
    pub const EXACT: Self = Self {
        step: Duration::from_nanos(1),
        rate_tolerance: 1e-9,
        largest_quota: Cost::MAX,
        charges: true,
    };

    /// The profile of Redis and Valkey: steps of a microsecond, errors of 1e-6, quotas up to nine
    /// million units.
    pub const REDIS: Self = Self {
        step: Duration::from_micros(1),
        rate_tolerance: 1e-6,
        largest_quota: Cost::from_units(9_000_000),
        charges: true,
    };
}

/// The error for an answer that is wrong: where it occurred, and which answer was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch(String);

impl Mismatch {
    pub(crate) fn new(scene: &str, detail: impl fmt::Display) -> Self {
        Self(format!("{scene}: {detail}"))
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mismatch {}
