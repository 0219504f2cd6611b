//! Sub-windows beside the log and the fixed window, decision by decision.

use earrrl::{Cost, Nanos};

use super::data::{Vectors, list, text, whole};
use crate::algorithms::client::Client;

/// The most requests allowed in any `(t - window, t]`.
fn most_in_any_window(allowed: &[u64], window: u64) -> u64 {
    let within = |t: u64| {
        allowed
            .iter()
            .filter(|u| **u <= t && t - **u < window)
            .count() as u64
    };
    allowed.iter().map(|t| within(*t)).max().unwrap_or(0)
}

#[test]
fn sub_windows_logs_and_fixed_windows() {
    let mut vectors = Vectors::read("sliding");
    for case in vectors.rows("cases") {
        let name = text(&case["name"]);
        let quota = whole(&case["quota"]);
        let window = whole(&case["window_s"]);
        let limit = format!("{quota}/{window}s");
        let parts = &case["sub_windows"];
        for (variant, rule) in [
            (
                "hybrid60",
                format!("sliding-window {limit} sub-windows={parts} lenient leaky"),
            ),
            (
                "hybrid61",
                format!("sliding-window {limit} sub-windows={parts} harsh leaky"),
            ),
            ("sliding_log", format!("sliding-log {limit} leaky")),
            ("fixed", format!("fixed-window {limit}")),
            (
                "hybrid60_count_denied",
                format!("sliding-window {limit} sub-windows={parts} lenient strict"),
            ),
            (
                "sliding_log_count_denied",
                format!("sliding-log {limit} strict"),
            ),
        ] {
            let mut client = Client::of(&rule);
            let mut decisions = String::new();
            let mut allowed = vec![];
            for time in list(&case["times_ms"]).iter().map(whole) {
                let verdict = client.ask(Nanos::new(time * 1_000_000), Cost::ONE).allowed;
                decisions.push(if verdict { '1' } else { '0' });
                allowed.extend(verdict.then_some(time));
            }
            assert_eq!(
                decisions,
                text(&case["decisions"][variant]),
                "{name}: {rule}"
            );
            let most = most_in_any_window(&allowed, window * 1000);
            assert_eq!(
                most,
                whole(&case["max_in_any_window"][variant]),
                "{name}: {rule}"
            );
            vectors.reached(decisions.len());
        }
    }
}
