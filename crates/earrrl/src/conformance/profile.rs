//! The exactness that an engine promises, and the differences that are found.

use std::fmt;
use std::format;
use std::string::String;
use std::time::Duration;

use crate::cost::Cost;

/// The exactness of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The step of its clock: all instants of the suite are multiples of it.
    pub step: Duration,
    /// The relative error that its rates may have.
    pub rate_tolerance: f64,
    /// The largest quota that it counts exactly.
    pub largest_quota: Cost,
    /// True if it can [charge](crate::Mode::Charge).
    pub charges: bool,
}

impl Profile {
    /// In-process engines: nanoseconds, 1e-9, any quota.
    pub const EXACT: Self = Self {
        step: Duration::from_nanos(1),
        rate_tolerance: 1e-9,
        largest_quota: Cost::MAX,
        charges: true,
    };

    /// Redis and Valkey: microseconds, 1e-6, nine million units.
    pub const REDIS: Self = Self {
        step: Duration::from_micros(1),
        rate_tolerance: 1e-6,
        largest_quota: Cost::from_units(9_000_000),
        charges: true,
    };
}

/// An answer that is not what it must be: where, and what was expected.
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
