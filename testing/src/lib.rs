//! A test suite that every engine must pass, in memory or behind a network protocol.
//!
//! Some tests compare each field of the decisions with tables of known sequences. All others
//! compare each decision with that of the [`ReferenceEngine`]. EARRRL runs the suite on its own
//! engines, on Redis, and on the server over HTTP and RESP:
//!
//! ```
//! use earrrl::{ManualClock, Nanos};
//! use earrrl_testing::{Profile, ReferenceEngine, block_on, conformance};
//! use std::sync::Arc;
//!
//! let make = async || ReferenceEngine::new(Arc::new(ManualClock::new(Nanos::ZERO)));
//! let answers = block_on(conformance(make, &Profile::EXACT))?;
//! assert!(answers > 10_000);
//! # Ok::<(), earrrl_testing::Mismatch>(())
//! ```

use std::future::Future;

use earrrl::Engine;

mod edges;
mod interleavings;
mod lockstep;
mod profile;
mod reference;
mod streams;
mod tables;

pub use earrrl::internal::Random;
pub use interleavings::{Restart, interleavings};
pub use lockstep::{Asked, Lockstep, Operation};
pub use profile::{Mismatch, Profile};
pub use reference::{ReferenceEngine, decide_all};

/// Runs the whole suite, with a new engine for every part, and returns the number of answers that
/// were compared.
///
/// # Errors
/// Returns the first wrong answer as an error.
pub async fn conformance<E: Engine>(
    make: impl AsyncFn() -> E,
    profile: &Profile,
) -> Result<usize, Mismatch> {
    let mut compared = tables::run(&make, profile).await?;
    compared += streams::run(&make, profile).await?;
    compared += edges::run(&make, profile).await?;
    Ok(compared)
}

/// Runs a future to its end on this thread, for engines that need no async runtime.
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
