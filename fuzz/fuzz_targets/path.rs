//! Any target of a request: its normal form has itself as its normal form, and its other readings differ from it
//! and from each other.
#![no_main]

use std::collections::HashSet;

use earrrl_tower::path::{OtherReadings, Paths};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|target: &[u8]| {
    for paths in [Paths::TOLERANT, Paths::default()] {
        let normal = paths.normalize(target).into_owned();
        assert!(!normal.contains(&b'?'), "{}", normal.escape_ascii());
        assert_eq!(
            paths.normalize(&normal),
            normal,
            "{}",
            normal.escape_ascii()
        );
        if let OtherReadings::Some(others) = paths.others(target) {
            let different: HashSet<_> = others.iter().chain([&normal]).collect();
            assert_eq!(
                different.len(),
                others.len() + 1,
                "{}",
                normal.escape_ascii()
            );
        }
    }
});
