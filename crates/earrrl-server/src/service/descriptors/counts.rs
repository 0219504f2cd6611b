//! Counters of requests by descriptor, as the peer has them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::metrics::{Counter, Family, Histogram, Labels, Metrics, SmallCounter};

/// The largest number of descriptors with counters of their own.
const MAX_KEYS: usize = 10_000;
/// The longest name of a level with counters of its own, in bytes: clients choose many of them.
const MAX_NAME: usize = 1024;
/// The name under which all other descriptors are counted together.
const OTHERS: &str = "other";

/// The counters of one descriptor. Striped ones would take 5 KiB a descriptor.
#[derive(Debug, Default)]
pub struct DescriptorCounts {
    /// Hits in all.
    pub total_hits: SmallCounter,
    /// Hits over the limit.
    pub over_limit: SmallCounter,
    /// Hits above four fifths of the limit.
    pub near_limit: SmallCounter,
    /// Hits within the limit.
    pub within_limit: SmallCounter,
    /// Hits over the limit in shadow mode.
    pub shadow_mode: SmallCounter,
}

/// The result for one descriptor of a request.
#[derive(Clone, Copy, Debug)]
pub struct Became {
    /// The number of hits that it cost.
    pub hits: u64,
    /// True if it was over its limit.
    pub over: bool,
    /// True if the limit is in shadow mode.
    pub shadow: bool,
    /// The limit.
    pub limit: u64,
    /// The part of the limit that remains.
    pub remaining: u64,
}

impl DescriptorCounts {
    /// Counts one descriptor of a request.
    pub fn count(&self, became: Became) {
        let Became { over, shadow, limit, remaining, .. } = became;
        // Bounded, since a descriptor may name so many hits that the sums would wrap around.
        let hits = became.hits.min(u32::MAX.into());
        if hits == 0 {
            return;
        }
        self.total_hits.add(hits);
        if over {
            self.over_limit.add(hits);
            if shadow {
                self.shadow_mode.add(hits);
            }
            return;
        }
        self.within_limit.add(hits);
        let near = limit * 4 / 5;
        let used = limit.saturating_sub(remaining);
        if used > near {
            self.near_limit.add(hits.min(used - near));
        }
    }
}

/// The end of a counter's name, its help text, and the counter.
type OutcomeCounter = (&'static str, &'static str, fn(&DescriptorCounts) -> &SmallCounter);

/// Every descriptor's counters, by the name that the peer gives it, and those of all calls. They go on
/// over reloads.
#[derive(Debug, Default)]
pub struct CountsOf {
    by_labels: Mutex<BTreeMap<Labels, Arc<DescriptorCounts>>>,
    /// Calls.
    pub requests: Counter,
    /// Calls that could not be understood.
    pub service_errors: Counter,
    /// Calls that the engine could not answer.
    pub engine_errors: Counter,
    /// From a call's headers until its answer is ready.
    pub response_time: Histogram,
}

impl CountsOf {
    /// Returns the counters of a descriptor, by its domain and the names of its levels.
    pub fn of(&self, key: &[String]) -> Arc<DescriptorCounts> {
        let short = key.iter().all(|name| name.len() <= MAX_NAME);
        let mut counts = self.lock();
        let key = if short { labels(key) } else { labels(&[OTHERS.to_owned()]) };
        let known = counts.contains_key(&key) || counts.len() < MAX_KEYS;
        let key = if known { key } else { labels(&[OTHERS.to_owned()]) };
        Arc::clone(counts.entry(key).or_default())
    }

    /// Returns the counters under the peer's names.
    pub fn families(&self, metrics: &Metrics) -> Vec<Family> {
        let mut families = self.of_descriptors();
        families.extend(self.of_calls());
        families.extend([
            Family::counter("ratelimit_service_config_load_success", "Configurations loaded.")
                .value(1.0 + metrics.reloads.get() as f64),
            Family::counter("ratelimit_service_config_load_error", "Configurations refused.")
                .value(metrics.failed_reloads.get() as f64),
        ]);
        families
    }

    fn of_descriptors(&self) -> Vec<Family> {
        let counts = self.lock();
        let family = |(outcome, help, counter): OutcomeCounter| {
            let values = counts
                .iter()
                .map(|(labels, counts)| (labels.clone(), counter(counts).get() as f64));
            let name = format!("ratelimit_service_rate_limit_{outcome}");
            Family::counter(&name, help).with_labels(values)
        };
        let outcomes: [OutcomeCounter; 5] = [
            ("total_hits", "Hits.", |counts| &counts.total_hits),
            ("over_limit", "Hits over.", |counts| &counts.over_limit),
            ("near_limit", "Hits near.", |counts| &counts.near_limit),
            ("within_limit", "Hits within.", |counts| &counts.within_limit),
            ("shadow_mode", "Hits let pass.", |counts| &counts.shadow_mode),
        ];
        outcomes.map(family).into()
    }

    fn of_calls(&self) -> [Family; 3] {
        let method: Labels = vec![("grpc_method", "ShouldRateLimit".to_owned())];
        let errors = [
            ("service_error", self.service_errors.get() as f64),
            ("redis_error", self.engine_errors.get() as f64),
        ];
        [
            Family::counter("ratelimit_service_total_requests", "Calls.")
                .with_labels([(method.clone(), self.requests.get() as f64)]),
            Family::counter("ratelimit_service_should_rate_limit_error", "Failed calls.")
                .labelled("err_type", errors),
            Family::histogram(
                "ratelimit_service_response_time_seconds",
                "Time of a call.",
                &method,
                &self.response_time,
            ),
        ]
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Labels, Arc<DescriptorCounts>>> {
        self.by_labels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the labels as the peer's exporter makes them: the domain and the first two levels.
fn labels(key: &[String]) -> Labels {
    ["domain", "key1", "key2"].into_iter().zip(key.iter().cloned()).collect()
}
