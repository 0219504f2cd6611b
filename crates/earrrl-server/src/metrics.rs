//! Counters, and their Prometheus text.
//!
//! Kept by hand: counters of one rule are spread over cells that threads don't share, since two
//! threads that count in one word slow each other down by more than a decision takes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use earrrl::Outcome;

/// Cells of a counter; more threads than that share.
const CELLS: usize = 16;
/// What can become of a request under a rule, in the order of `Outcome`.
const OUTCOMES: [Outcome; 6] = [
    Outcome::Allow,
    Outcome::Observe,
    Outcome::Quarantine,
    Outcome::Delay,
    Outcome::ShadowBan,
    Outcome::Deny,
];
/// Upper bounds of the histogram, in microseconds.
const BOUNDS: [u64; 12] =
    [10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 100_000, 1_000_000];

/// A number that only grows, cheap to count from any thread.
#[derive(Debug, Default)]
pub struct Counter([Cell; CELLS]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell(AtomicU64);

impl Counter {
    /// One more.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// So many more.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0[cell()].0.fetch_add(count, Relaxed);
    }

    /// How many in all.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|cell| cell.0.load(Relaxed)).sum()
    }
}

/// The cell of this thread.
#[inline]
fn cell() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static CELL: usize = NEXT.fetch_add(1, Relaxed) % CELLS);
    CELL.with(|cell| *cell)
}

/// How often one rule said what.
#[derive(Debug, Default)]
pub struct RuleOutcomes {
    cells: [OutcomeCells; CELLS],
    /// The second in which a dry run was last logged.
    logged: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct OutcomeCells([AtomicU64; OUTCOMES.len()]);

impl RuleOutcomes {
    /// Counts one.
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

    /// How many of this outcome.
    pub fn get(&self, outcome: Outcome) -> u64 {
        let place = OUTCOMES.iter().position(|known| *known == outcome);
        place.map_or(0, |place| self.cells.iter().map(|cell| cell.0[place].load(Relaxed)).sum())
    }
}

impl RuleOutcomes {
    /// Logs a request that a dry run would have denied; at most one a second, the counts have all.
    pub fn log_observed(&self, rule: &str, key: &[u8]) {
        let second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if self.logged.swap(second, Relaxed) != second {
            let observed = self.get(Outcome::Observe);
            tracing::info!(rule, key = %key.escape_ascii(), observed, "over the limit, not enforced");
        }
    }
}

/// The counts of all rules there have been; as many as configurations name, so bounded by them.
#[derive(Debug, Default)]
pub struct Outcomes(Mutex<BTreeMap<String, Arc<RuleOutcomes>>>);

impl Outcomes {
    /// The counts of a rule; they go on over reloads.
    pub fn of_rule(&self, name: &str) -> Arc<RuleOutcomes> {
        Arc::clone(self.lock().entry(name.to_owned()).or_default())
    }

    /// Decisions in all.
    pub fn total(&self) -> u64 {
        let of = |rule: &Arc<RuleOutcomes>| {
            OUTCOMES.map(|outcome| rule.get(outcome)).iter().sum::<u64>()
        };
        self.lock().values().map(of).sum()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<RuleOutcomes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long something took.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BOUNDS.len() + 1],
    nanos: Counter,
}

impl Histogram {
    /// Counts one that took so long.
    #[inline]
    pub fn record(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        let bucket = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[bucket].increment();
        self.nanos.add(took.as_nanos() as u64);
    }

    /// Each upper bound in seconds, and how many took at most so long.
    fn cumulative(&self) -> impl Iterator<Item = (String, u64)> {
        let mut count = 0;
        self.buckets.iter().enumerate().map(move |(place, bucket)| {
            count += bucket.get();
            let seconds = BOUNDS.get(place).map(|micros| (*micros as f64 / 1e6).to_string());
            (seconds.unwrap_or_else(|| "+Inf".to_owned()), count)
        })
    }
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    /// By rule and outcome.
    pub outcomes: Outcomes,
    /// From reading a batch of RESP requests until its answers are ready.
    pub resp_batch: Histogram,
    /// From an HTTP request's body until its answer is ready.
    pub http_request: Histogram,
    /// RESP requests.
    pub resp_requests: Counter,
    /// HTTP requests.
    pub http_requests: Counter,
    /// Requests that could not be understood.
    pub malformed: Counter,
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections refused, for a limit.
    pub refused: Counter,
    /// Connections closed because a time-out passed or memory ran short.
    pub shed: Counter,
    /// Reloads that took effect.
    pub reloads: Counter,
    /// Reloads that were refused, because the file was not valid.
    pub failed_reloads: Counter,
}

/// Numbers that are kept elsewhere and looked at when asked for.
#[derive(Debug)]
pub struct Family {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    /// Values, each with its label in braces, or with nothing.
    values: Vec<(String, f64)>,
}

impl Family {
    /// Numbers that go up and down.
    pub fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: "gauge", values: Vec::new() }
    }

    /// Numbers that only grow.
    pub fn counter(name: &'static str, help: &'static str) -> Self {
        Self { kind: "counter", ..Self::gauge(name, help) }
    }

    /// With a single value.
    pub fn value(mut self, value: f64) -> Self {
        self.values.push((String::new(), value));
        self
    }

    /// With values, each with its labels in braces.
    pub fn with_labels(mut self, values: impl IntoIterator<Item = (String, f64)>) -> Self {
        self.values.extend(values);
        self
    }

    /// A histogram, with labels in braces.
    pub fn histogram(
        name: &'static str,
        help: &'static str,
        labels: &str,
        histogram: &Histogram,
    ) -> Self {
        let inside = labels.trim_matches(['{', '}']);
        let bucket = |(bound, count)| (format!("_bucket{{{inside},le=\"{bound}\"}}"), count as f64);
        let mut values: Vec<_> = histogram.cumulative().map(bucket).collect();
        let count = values.last().map_or(0.0, |(_, count)| *count);
        values.push((format!("_sum{labels}"), histogram.nanos.get() as f64 / 1e9));
        values.push((format!("_count{labels}"), count));
        Self { name, help, kind: "histogram", values }
    }

    /// With values, each of another label. Labels hold nothing that would have to be escaped.
    pub fn labelled<L: AsRef<str>>(
        mut self,
        label: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> Self {
        let labels = |name: L| format!("{{{label}=\"{}\"}}", name.as_ref());
        self.values.extend(values.into_iter().map(|(name, value)| (labels(name), value)));
        self
    }
}

impl Metrics {
    /// All of it in the Prometheus text format, with numbers that others keep.
    pub fn render(&self, families: &[Family]) -> String {
        let mut text = String::with_capacity(4096);
        head(&mut text, "earrrl_decisions_total", "Decisions by rule and outcome.", "counter");
        for (rule, outcomes) in &*self.outcomes.lock() {
            for outcome in OUTCOMES {
                let labels = format!("{{rule=\"{rule}\",outcome=\"{}\"}}", outcome.name());
                sample(&mut text, "earrrl_decisions_total", &labels, outcomes.get(outcome));
            }
        }
        for (name, help, counter) in self.counters() {
            head(&mut text, name, help, "counter");
            sample(&mut text, name, "", counter.get());
        }
        let name = "earrrl_request_seconds";
        head(&mut text, name, "Time from a request's bytes to its answer's.", "histogram");
        histogram(&mut text, name, "resp", &self.resp_batch);
        histogram(&mut text, name, "http", &self.http_request);
        for Family { name, help, kind, values } in families {
            head(&mut text, name, help, kind);
            values.iter().for_each(|(labels, value)| sample(&mut text, name, labels, value));
        }
        text
    }

    fn counters(&self) -> [(&'static str, &'static str, &Counter); 8] {
        [
            ("earrrl_resp_requests_total", "RESP requests.", &self.resp_requests),
            ("earrrl_http_requests_total", "HTTP requests.", &self.http_requests),
            ("earrrl_malformed_requests_total", "Requests not understood.", &self.malformed),
            ("earrrl_connections_accepted_total", "Connections accepted.", &self.accepted),
            ("earrrl_connections_refused_total", "Connections over a limit.", &self.refused),
            ("earrrl_connections_shed_total", "Connections overdue or too heavy.", &self.shed),
            ("earrrl_reloads_total", "Reloads that took effect.", &self.reloads),
            ("earrrl_reload_failures_total", "Reloads refused.", &self.failed_reloads),
        ]
    }
}

// Writing to a string can't fail.

fn head(text: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "{name}{labels} {value}");
}

fn histogram(text: &mut String, name: &str, protocol: &str, histogram: &Histogram) {
    let mut count = 0;
    for (bound, so_far) in histogram.cumulative() {
        count = so_far;
        let labels = format!("{{protocol=\"{protocol}\",le=\"{bound}\"}}");
        sample(text, &format!("{name}_bucket"), &labels, count);
    }
    let labels = format!("{{protocol=\"{protocol}\"}}");
    sample(text, &format!("{name}_sum"), &labels, histogram.nanos.get() as f64 / 1e9);
    sample(text, &format!("{name}_count"), &labels, count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_show_in_prometheus_text() {
        let metrics = Metrics::default();
        metrics.outcomes.of_rule("login").count(Outcome::Deny);
        metrics.outcomes.of_rule("login").count(Outcome::Deny);
        metrics.resp_batch.record(Duration::from_micros(30));
        metrics.resp_batch.record(Duration::from_secs(2));
        let text =
            metrics.render(&[Family::gauge("earrrl_connections", "Connections.").value(3.0)]);
        for line in [
            "earrrl_decisions_total{rule=\"login\",outcome=\"deny\"} 2",
            "earrrl_decisions_total{rule=\"login\",outcome=\"allow\"} 0",
            "earrrl_request_seconds_bucket{protocol=\"resp\",le=\"0.00005\"} 1",
            "earrrl_request_seconds_bucket{protocol=\"resp\",le=\"+Inf\"} 2",
            "earrrl_request_seconds_sum{protocol=\"resp\"} 2.00003",
            "earrrl_connections 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
