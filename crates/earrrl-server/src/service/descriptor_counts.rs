//! Counters of requests by descriptor, under the metric names of envoyproxy/ratelimit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use earrrl::internal::lock;

use super::error::AskError;
use crate::metrics::{Counter, Family, Histogram, Labels, Metrics, SmallCounter};

/// The greatest number of descriptors that have counters of their own.
const MAX_KEYS: usize = 10_000;
/// The longest descriptor name, in bytes, that gets counters of its own. The length is limited
/// because clients choose many of these names.
const MAX_NAME: usize = 1024;
/// The name under which all descriptors without counters of their own are counted.
const OTHERS: &str = "other";

/// The suffixes of the names of a descriptor's metrics, and their help texts.
const OUTCOMES: [(&str, &str); 5] = [
    ("total_hits", "Hits."),
    ("over_limit", "Hits over."),
    ("near_limit", "Hits near."),
    ("within_limit", "Hits within."),
    ("shadow_mode", "Hits let pass."),
];

/// The counters of one descriptor: of all hits, and of those over the limit, above 80 % of it, within it, and over
/// it in shadow mode. They are not striped over CPUs, because that would take 5 KiB a descriptor.
#[derive(Debug, Default)]
pub struct DescriptorCounts([SmallCounter; OUTCOMES.len()]);

/// The result of one descriptor in a request, as it is counted in the metrics.
#[derive(Clone, Copy, Debug)]
pub struct Became {
    /// The number of hits that the descriptor charged.
    pub hits: u64,
    /// True if the descriptor was over its limit.
    pub over: bool,
    /// True if the descriptor's limit is in shadow mode.
    pub shadow: bool,
    /// The number of hits that the limit allows.
    pub limit: u64,
    /// The number of hits that the limit still allows.
    pub remaining: u64,
}

impl DescriptorCounts {
    /// Counts the result of one descriptor in a request.
    pub fn count(&self, became: Became) {
        let Became {
            over,
            shadow,
            limit,
            remaining,
            ..
        } = became;
        let [total, over_limit, near_limit, within, shadow_mode] = &self.0;
        // The number is bounded, since a descriptor may name so many hits that the sums would
        // overflow.
        let hits = became.hits.min(u32::MAX.into());
        if hits == 0 {
            return;
        }
        total.add(hits);
        if over {
            over_limit.add(hits);
            if shadow {
                shadow_mode.add(hits);
            }
            return;
        }
        within.add(hits);
        let near = limit * 4 / 5;
        let used = limit.saturating_sub(remaining);
        if used > near {
            near_limit.add(hits.min(used - near));
        }
    }
}

/// The counters of every descriptor, and those of all calls of the service. A reload of the
/// configuration does not reset them.
#[derive(Debug, Default)]
pub struct CountsOf {
    by_labels: Mutex<BTreeMap<Labels, Arc<DescriptorCounts>>>,
    /// The number of calls of the rate limit service.
    pub requests: Counter,
    /// The number of calls that were rejected as invalid.
    pub service_errors: Counter,
    /// The number of calls that failed because of an error of the engine.
    pub engine_errors: Counter,
    /// The number of limits that requests brought and that could not be counted, so that the configured ones
    /// applied.
    pub refused_limits: Counter,
    /// The time from receiving a call's headers until its answer is ready.
    pub response_time: Histogram,
}

impl CountsOf {
    /// Returns the counters of a descriptor, which is named by its domain and the names of its
    /// levels.
    pub fn of(&self, key: &[String]) -> Arc<DescriptorCounts> {
        let mut counts = lock(&self.by_labels);
        let is_short = key.iter().all(|name| name.len() <= MAX_NAME);
        let own = is_short.then(|| labels(key));
        let own = own.filter(|own| counts.contains_key(own) || counts.len() < MAX_KEYS);
        let key = own.unwrap_or_else(|| labels(&[OTHERS.to_owned()]));
        Arc::clone(counts.entry(key).or_default())
    }

    /// Counts a limit that a request brought and that could not be counted, and logs the first one.
    pub(super) fn refused_limit(&self, why: &AskError) {
        if self.refused_limits.get() == 0 {
            tracing::warn!(
                %why,
                "a limit that a request brings cannot be counted, so the configured one applies"
            );
        }
        self.refused_limits.increment();
    }

    /// Returns the metrics under the names that envoyproxy/ratelimit uses.
    pub fn families(&self, metrics: &Metrics) -> Vec<Family> {
        let mut families = self.of_descriptors();
        families.extend(self.of_calls());
        families.extend([
            Family::counter(
                "ratelimit_service_config_load_success",
                "Configurations loaded.",
            )
            .value(1.0 + metrics.reloads.get() as f64),
            Family::counter(
                "ratelimit_service_config_load_error",
                "Configurations refused.",
            )
            .value(metrics.failed_reloads.get() as f64),
        ]);
        families
    }

    fn of_descriptors(&self) -> Vec<Family> {
        let counts = lock(&self.by_labels);
        let family = |(place, (outcome, help)): (usize, (&str, &str))| {
            let values = counts
                .iter()
                .map(|(labels, counts)| (labels.clone(), counts.0[place].get() as f64));
            let name = format!("ratelimit_service_rate_limit_{outcome}");
            Family::counter(&name, help).with_labels(values)
        };
        OUTCOMES.into_iter().enumerate().map(family).collect()
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
}

/// Returns the labels that the metrics exporter of envoyproxy/ratelimit would use: the domain and
/// the first two levels.
fn labels(key: &[String]) -> Labels {
    ["domain", "key1", "key2"]
        .into_iter()
        .zip(key.iter().cloned())
        .collect()
}
