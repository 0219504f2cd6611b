//! The conformance suite over this crate's engines.

use std::sync::Arc;

use earrrl::conformance::{Profile, block_on, run};
use earrrl::{ManualClock, MemoryEngine, Nanos, ReferenceEngine};

#[test]
fn the_reference_engine_conforms() {
    let make = async || ReferenceEngine::new(Arc::new(ManualClock::new(Nanos::ZERO)));
    for profile in [Profile::EXACT, Profile::REDIS] {
        block_on(run(make, &profile)).unwrap();
    }
}

#[test]
fn the_memory_engine_conforms() {
    let make = async || {
        let clock = Arc::new(ManualClock::new(Nanos::ZERO));
        MemoryEngine::with_clock(10_000, clock).unwrap()
    };
    for profile in [Profile::EXACT, Profile::REDIS] {
        block_on(run(make, &profile)).unwrap();
    }
}
