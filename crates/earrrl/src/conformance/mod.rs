//! The suite that every engine must pass, whatever keeps its states and whatever protocol lies
//! between.
//!
//! Tables say what known sequences answer, field by field; everything else is compared, answer by
//! answer, with the [`ReferenceEngine`](crate::ReferenceEngine). It is run against this crate's own engines, Redis, and the
//! server over HTTP and RESP; an engine of your own runs it the same way:
//!
//! ```
//! use earrrl::conformance::{self, Profile};
//! use earrrl::{ManualClock, Nanos, ReferenceEngine};
//! use std::sync::Arc;
//! let make = async || ReferenceEngine::new(Arc::new(ManualClock::new(Nanos::ZERO)));
//! let answers = conformance::block_on(conformance::run(make, &Profile::EXACT))?;
//! assert!(answers > 10_000);
//! # Ok::<(), conformance::Mismatch>(())
//! ```

use std::fmt;
use std::format;
use std::future::Future;
use std::string::String;
use std::time::Duration;

use crate::cost::Cost;
use crate::engine::Engine;

mod edges;
mod lockstep;
mod reference;
mod streams;
mod tables;

pub use lockstep::{Asked, Lockstep, Operation};
pub use reference::ReferenceEngine;

/// How exact an engine is.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The step of its clock: all instants of the suite are multiples of it.
    pub step: Duration,
    /// How far its rates may be off, relative.
    pub rate_tolerance: f64,
    /// The largest quota that it counts exactly.
    pub largest_quota: Cost,
    /// Whether it can [charge](crate::Mode::Charge).
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

/// Runs the whole suite, on a new engine for every scene. Answers how many answers were compared.
///
/// # Errors
/// The first answer that is not what it must be.
pub async fn run<E: Engine>(
    make: impl AsyncFn() -> E,
    profile: &Profile,
) -> Result<usize, Mismatch> {
    let mut compared = tables::run(&make, profile).await?;
    compared += streams::run(&make, profile).await?;
    compared += edges::run(&make, profile).await?;
    Ok(compared)
}

/// Drives a future to its end on this thread, for engines that need no runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::yield_now();
    }
}
