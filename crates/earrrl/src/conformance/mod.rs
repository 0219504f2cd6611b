//! The suite that every engine must pass, whatever keeps its states and whatever protocol lies
//! between.
//!
//! Tables say what known sequences answer, field by field; everything else is compared, answer by
//! answer, with the [`ReferenceEngine`]. It is run against this crate's own engines, Redis, and the
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

use std::future::Future;

use crate::engine::Engine;

mod edges;
mod lockstep;
mod profile;
mod reference;
mod streams;
mod tables;

pub use lockstep::{Asked, Lockstep, Operation};
pub use profile::{Mismatch, Profile};
pub use reference::ReferenceEngine;

/// Runs the whole suite, on a new engine for every scene, and returns the number of answers compared.
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
