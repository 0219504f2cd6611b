//! Counters of the outcomes of each rule's decisions.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use earrrl::Outcome;

use super::counter::{CELLS, Counter, cell};
use crate::log::Seldom;

/// The outcomes that a request can have under a rule, in the order of the variants of `Outcome`.
pub(super) const OUTCOMES: [Outcome; 6] = [
    Outcome::Allow,
    Outcome::Observe,
    Outcome::Quarantine,
    Outcome::Delay,
    Outcome::ShadowBan,
    Outcome::Deny,
];
/// The counters of the outcomes of one rule.
#[derive(Debug, Default)]
pub struct RuleOutcomes {
    cells: [OutcomeCells; CELLS],
    /// The number of requests that lacked an attribute of the rule's key.
    pub missing: Counter,
    /// The number of requests that stated a cost which is none.
    pub invalid_costs: Counter,
    pub(crate) invalid_cost_logged: Seldom,
    observed_logged: Seldom,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct OutcomeCells([AtomicU64; OUTCOMES.len()]);

impl RuleOutcomes {
    /// Counts one request with this outcome.
    #[inline]
    pub fn count(&self, outcome: Outcome) {
        let place = match outcome {
            Outcome::Allow => 0,
            Outcome::Observe => 1,
            Outcome::Quarantine => 2,
            Outcome::Delay => 3,
            Outcome::ShadowBan => 4,
            _ => 5,
        };
        self.cells[cell()].0[place].fetch_add(1, Relaxed);
    }

    /// Returns the number of requests with this outcome.
    pub fn get(&self, outcome: Outcome) -> u64 {
        let place = OUTCOMES.iter().position(|known| *known == outcome);
        place.map_or(0, |place| {
            self.cells
                .iter()
                .map(|cell| cell.0[place].load(Relaxed))
                .sum()
        })
    }

    /// Returns the number of requests with any outcome.
    pub fn total(&self) -> u64 {
        OUTCOMES.map(|outcome| self.get(outcome)).iter().sum()
    }

    /// Logs a request that would have been denied if its rule were not a dry run. At most one
    /// request a second is logged, while the counters include all of them.
    pub fn log_observed(&self, rule: &str, key: &[u8]) {
        if self.observed_logged.is_due(1) {
            let observed = self.get(Outcome::Observe);
            // A key may be a credential, such as a header's value: it is logged at debug level
            // only.
            let client = digest(key);
            tracing::info!(rule, client, observed, "over the limit, not enforced");
            tracing::debug!(rule, client, key = %key.escape_ascii(), "the key of a client");
        }
    }
}

/// Returns a digest of a client's key, which does not reveal the key. The same key has the same
/// digest as long as the process runs.
pub(crate) fn digest(key: &[u8]) -> String {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    format!("{:016x}", SECRET.hash_one(key))
}

/// The counters of all rules since the server started, including removed ones. Configurations bound
/// the number of rules.
#[derive(Debug, Default)]
pub struct Outcomes(Mutex<BTreeMap<String, Arc<RuleOutcomes>>>);

impl Outcomes {
    /// Returns the counters of the rule of this name, which continue across reloads.
    pub fn of_rule(&self, name: &str) -> Arc<RuleOutcomes> {
        Arc::clone(self.lock().entry(name.to_owned()).or_default())
    }

    /// Returns the number of decisions of all rules.
    pub fn total(&self) -> u64 {
        self.lock().values().map(|rule| rule.total()).sum()
    }

    /// Returns the name of each rule with its counters.
    pub(super) fn each(&self) -> Vec<(String, Arc<RuleOutcomes>)> {
        self.lock()
            .iter()
            .map(|(name, rule)| (name.clone(), Arc::clone(rule)))
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<RuleOutcomes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
