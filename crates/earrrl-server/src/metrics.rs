//! What is counted, and how it is told to Prometheus.
//!
//! Counters are spread over cells that threads don't share: two threads that count in one word slow
//! each other down by more than a decision takes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use earrrl::Outcome;
use prometheus::core::Collector as _;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{
    Bucket, Counter as CounterValue, Gauge, Histogram as HistogramValue, LabelPair, Metric,
    MetricFamily, MetricType,
};
use prometheus::{Encoder as _, TextEncoder};

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
}

/// The statuses that this server answers with; others are counted together.
const STATUSES: [u16; 15] =
    [200, 204, 400, 401, 403, 404, 405, 409, 413, 415, 421, 422, 429, 431, 503];
/// The codes of RESP's errors.
const CODES: [&str; 6] = ["ERR", "EXECABORT", "NOAUTH", "NOPERM", "NOPROTO", "WRONGPASS"];

/// How often each of a few known things was seen, and anything else.
#[derive(Debug)]
pub struct Counts<const N: usize> {
    known: [Counter; N],
    other: Counter,
}

impl<const N: usize> Default for Counts<N> {
    fn default() -> Self {
        Self { known: std::array::from_fn(|_| Counter::default()), other: Counter::default() }
    }
}

impl<const N: usize> Counts<N> {
    fn count<T: PartialEq>(&self, names: &[T; N], seen: &T) {
        let place = names.iter().position(|known| known == seen);
        place.map_or(&self.other, |place| &self.known[place]).increment();
    }

    fn values<T: ToString>(&self, label: &'static str, names: &[T; N]) -> Vec<Metric> {
        let known =
            names.iter().zip(&self.known).map(|(name, counter)| (name.to_string(), counter));
        let all = known.chain([("other".to_owned(), &self.other)]);
        let seen = all.map(|(name, counter)| (name, counter.get())).filter(|(_, count)| *count > 0);
        seen.map(|(name, count)| counted(&[(label, &name)], count as f64)).collect()
    }
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    /// By rule and outcome.
    pub outcomes: Outcomes,
    /// `CL.THROTTLE`'s.
    pub throttle: RuleOutcomes,
    /// From reading a batch of RESP requests until its answers are ready.
    pub resp_batch: Histogram,
    /// From an HTTP request's body until its answer is ready.
    pub http_request: Histogram,
    /// RESP requests.
    pub resp_requests: Counter,
    /// HTTP requests.
    pub http_requests: Counter,
    /// Requests that no rule was for.
    pub unmatched: Counter,
    /// Requests that could not be understood.
    pub malformed: Counter,
    /// Wrong tokens.
    pub failed_logins: Counter,
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
    resp_errors: Counts<{ CODES.len() }>,
    http_responses: Counts<{ STATUSES.len() }>,
}

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

fn borrowed(labels: &Labels) -> Vec<(&str, &str)> {
    labels.iter().map(|(name, value)| (*name, &**value)).collect()
}

/// Numbers that are kept elsewhere and looked at when asked for.
#[derive(Debug)]
pub struct Family(MetricFamily);

impl Family {
    /// Numbers that go up and down.
    pub fn gauge(name: &str, help: &str) -> Self {
        Self(family(name, help, MetricType::GAUGE, Vec::new()))
    }

    /// Numbers that only grow.
    pub fn counter(name: &str, help: &str) -> Self {
        Self(family(name, help, MetricType::COUNTER, Vec::new()))
    }

    /// With a single value.
    pub fn value(self, value: f64) -> Self {
        self.with([metric(&[], value)].into())
    }

    /// With values, each with its labels.
    pub fn with_labels(self, values: impl IntoIterator<Item = (Labels, f64)>) -> Self {
        let values = values.into_iter();
        self.with(values.map(|(labels, value)| metric(&borrowed(&labels), value)).collect())
    }

    /// A histogram.
    pub fn histogram(name: &str, help: &str, labels: &Labels, taken: &Histogram) -> Self {
        Self(histogram(name, help, &borrowed(labels), taken))
    }

    /// With values, each of another label.
    pub fn labelled<L: AsRef<str>>(
        self,
        label: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> Self {
        let values = values.into_iter();
        self.with(values.map(|(name, value)| metric(&[(label, name.as_ref())], value)).collect())
    }

    fn with(mut self, mut values: Vec<Metric>) -> Self {
        if self.0.get_field_type() == MetricType::COUNTER {
            for value in &mut values {
                let mut counter = CounterValue::default();
                counter.set_value(value.get_gauge().get_value());
                value.set_counter(counter);
            }
        }
        self.0.set_metric(values);
        self
    }
}

impl Metrics {
    /// Counts an answer of HTTP.
    #[inline]
    pub fn count_status(&self, status: u16) {
        self.http_responses.count(&STATUSES, &status);
    }

    /// Counts an error of RESP.
    pub fn count_error(&self, code: &'static str) {
        self.resp_errors.count(&CODES, &code);
    }

    /// All of it in the Prometheus text format, with numbers that others keep.
    pub fn render(&self, families: Vec<Family>) -> Vec<u8> {
        let counters = self.counters().map(|(name, help, counter)| {
            family(name, help, MetricType::COUNTER, vec![counted(&[], counter.get() as f64)])
        });
        let errors = self.resp_errors.values("code", &CODES);
        let responses = self.http_responses.values("status", &STATUSES);
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let more = [
            family(
                "earrrl_decisions_total",
                "Decisions by rule and outcome.",
                MetricType::COUNTER,
                self.decisions(),
            ),
            family(
                "earrrl_resp_errors_total",
                "Errors answered over RESP.",
                MetricType::COUNTER,
                errors,
            ),
            family(
                "earrrl_http_responses_total",
                "HTTP answers by status.",
                MetricType::COUNTER,
                responses,
            ),
            histogram(
                "earrrl_request_seconds",
                "Time from an HTTP request's body to its answer.",
                &[("protocol", "http")],
                &self.http_request,
            ),
            histogram(
                "earrrl_resp_batch_seconds",
                "Time from reading RESP requests that came together to the last one's answer.",
                &[],
                &self.resp_batch,
            ),
            family(
                "earrrl_build_info",
                "The version.",
                MetricType::GAUGE,
                vec![metric(&version, 1.0)],
            ),
        ];
        let others = families.into_iter().map(|family| family.0);
        let process = ProcessCollector::for_self().collect();
        let all = counters.into_iter().chain(more).chain(others).chain(process);
        // A family without values has no text.
        let all: Vec<_> = all.filter(|family| !family.get_metric().is_empty()).collect();
        let mut text = Vec::with_capacity(8192);
        // Writing to memory can't fail.
        let _ = TextEncoder::new().encode(&all, &mut text);
        text
    }

    fn decisions(&self) -> Vec<Metric> {
        let of = |rule: &str, outcomes: &RuleOutcomes| {
            OUTCOMES.map(|outcome| {
                let labels = [("rule", rule), ("outcome", outcome.name())];
                counted(&labels, outcomes.get(outcome) as f64)
            })
        };
        let rules = self.outcomes.lock();
        let rules = rules.iter().flat_map(|(rule, outcomes)| of(rule, outcomes));
        rules.chain(of("CL.THROTTLE", &self.throttle)).collect()
    }

    fn counters(&self) -> [(&'static str, &'static str, &Counter); 10] {
        [
            ("earrrl_resp_requests_total", "RESP requests.", &self.resp_requests),
            ("earrrl_http_requests_total", "HTTP requests.", &self.http_requests),
            ("earrrl_unmatched_total", "Requests that no rule was for.", &self.unmatched),
            ("earrrl_malformed_requests_total", "Requests not understood.", &self.malformed),
            ("earrrl_failed_logins_total", "Wrong tokens.", &self.failed_logins),
            ("earrrl_connections_accepted_total", "Connections accepted.", &self.accepted),
            ("earrrl_connections_refused_total", "Connections over a limit.", &self.refused),
            ("earrrl_connections_shed_total", "Connections overdue or too heavy.", &self.shed),
            ("earrrl_reloads_total", "Reloads that took effect.", &self.reloads),
            ("earrrl_reload_failures_total", "Reloads refused.", &self.failed_reloads),
        ]
    }
}

fn family(name: &str, help: &str, kind: MetricType, values: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(values);
    family
}

fn metric(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_gauge(gauge);
    metric
}

fn counted(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut counter = CounterValue::default();
    counter.set_value(value);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_counter(counter);
    metric
}

fn pairs(labels: &[(&str, &str)]) -> Vec<LabelPair> {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    labels.iter().map(pair).collect()
}

fn histogram(
    name: &str,
    help: &str,
    labels: &[(&str, &str)],
    histogram: &Histogram,
) -> MetricFamily {
    let mut count = 0;
    let buckets = BOUNDS.iter().zip(&histogram.buckets).map(|(micros, bucket)| {
        count += bucket.get();
        let mut cumulative = Bucket::default();
        cumulative.set_upper_bound(*micros as f64 / 1e6);
        cumulative.set_cumulative_count(count);
        cumulative
    });
    let mut value = HistogramValue::default();
    value.set_bucket(buckets.collect());
    // The last bucket has no bound; the encoder writes it from the count.
    value.set_sample_count(count + histogram.buckets.last().map_or(0, Counter::get));
    value.set_sample_sum(histogram.nanos.get() as f64 / 1e9);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_histogram(value);
    family(name, help, MetricType::HISTOGRAM, vec![metric])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_show_in_prometheus_text() {
        let metrics = Metrics::default();
        metrics.outcomes.of_rule("login").count(Outcome::Deny);
        metrics.outcomes.of_rule("login").count(Outcome::Deny);
        metrics.throttle.count(Outcome::Allow);
        metrics.resp_batch.record(Duration::from_micros(30));
        metrics.resp_batch.record(Duration::from_secs(2));
        metrics.count_status(429);
        metrics.count_status(599);
        metrics.count_error("NOAUTH");
        let text =
            metrics.render(vec![Family::gauge("earrrl_connections", "Connections.").value(3.0)]);
        let text = String::from_utf8(text).unwrap();
        for line in [
            "earrrl_decisions_total{rule=\"login\",outcome=\"deny\"} 2",
            "earrrl_decisions_total{rule=\"login\",outcome=\"allow\"} 0",
            "earrrl_decisions_total{rule=\"CL.THROTTLE\",outcome=\"allow\"} 1",
            "earrrl_resp_batch_seconds_bucket{le=\"0.00005\"} 1",
            "earrrl_resp_batch_seconds_bucket{le=\"+Inf\"} 2",
            "earrrl_resp_batch_seconds_sum 2.00003",
            "earrrl_request_seconds_count{protocol=\"http\"} 0",
            "earrrl_http_responses_total{status=\"429\"} 1",
            "earrrl_http_responses_total{status=\"other\"} 1",
            "earrrl_resp_errors_total{code=\"NOAUTH\"} 1",
            "# TYPE earrrl_decisions_total counter",
            concat!("earrrl_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "earrrl_connections 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("process_resident_memory_bytes "), "{text}");
    }
}
