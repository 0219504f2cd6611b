//! The conformance suite over this crate's engines.

use std::sync::Arc;

#[cfg(target_os = "linux")]
use earrrl::internal::StateDirectory;
use earrrl::{ManualClock, MemoryEngine, Nanos};
use earrrl_testing::{Profile, ReferenceEngine, block_on, conformance, interleavings};

/// The steps of Redis, in memory.
const COARSE: Profile = Profile { ..Profile::REDIS };

#[test]
fn the_reference_engine_conforms() {
    let make = async || ReferenceEngine::new(Arc::new(ManualClock::new(Nanos::ZERO)));
    for profile in [Profile::EXACT, COARSE] {
        block_on(conformance(make, &profile)).unwrap();
    }
}

#[test]
fn the_memory_engine_conforms() {
    let make = async || {
        let clock = Arc::new(ManualClock::new(Nanos::ZERO));
        MemoryEngine::with_clock(10_000, clock).unwrap()
    };
    for profile in [Profile::EXACT, COARSE] {
        block_on(conformance(make, &profile)).unwrap();
    }
}

#[test]
fn interleavings_in_memory_agree_with_the_list_of_all_charges() {
    let clock = Arc::new(ManualClock::new(Nanos::ZERO));
    let engine = MemoryEngine::with_clock(10_000, clock).unwrap();
    let compared = block_on(interleavings(engine, &Profile::EXACT, true, None));
    assert!(compared.unwrap_or_else(|error| panic!("{error}")) > 15_000);
}

/// State files hold the rules whose states are words, and the reservations of all rules. The engine is restarted
/// again and again.
#[cfg(target_os = "linux")]
#[test]
fn interleavings_on_state_files_agree_with_the_list_of_all_charges() {
    let path = std::env::temp_dir().join(format!("earrrl-interleavings-{}", std::process::id()));
    let open = |now| {
        let directory = StateDirectory::open(&path)
            .unwrap()
            .accept_rules_in_memory(true);
        let clock = Arc::new(ManualClock::new(now));
        MemoryEngine::in_directory(10_000, directory, clock).unwrap()
    };
    let mut restart = |engine, now| {
        drop(engine);
        open(now)
    };
    let ran = interleavings(open(Nanos::ZERO), &Profile::EXACT, true, Some(&mut restart));
    let compared = block_on(ran);
    std::fs::remove_dir_all(&path).unwrap();
    assert!(compared.unwrap_or_else(|error| panic!("{error}")) > 15_000);
}
