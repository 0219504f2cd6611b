//! The YAML configuration of envoyproxy/ratelimit: any text is read or refused, and what is read makes limits or one
//! error.
#![no_main]

use earrrl_server::config::envoy::algorithm::EnvoyAlgorithm;
use earrrl_server::config::envoy::{file, tree::Tree};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(domain) = file::parse(text, "limits.yaml", &mut Vec::new()) else {
        return;
    };
    let Ok(tree) = Tree::new(&[domain], false) else {
        return;
    };
    assert_eq!(tree.domains(), 1);
    let _ = tree.check(EnvoyAlgorithm::RecentAverage);
});
