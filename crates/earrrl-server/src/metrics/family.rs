//! Metric families of the `prometheus` crate, created from values that are stored elsewhere.

use prometheus::proto::{
    Bucket, Counter as CounterValue, Gauge, Histogram as HistogramValue, LabelPair, Metric,
    MetricFamily, MetricType,
};

use super::counter::Histogram;

/// The names and values of the labels of one metric value.
pub type Labels = Vec<(&'static str, String)>;

fn borrowed(labels: &Labels) -> Vec<(&str, &str)> {
    labels
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect()
}

/// A metric family: a metric's name, its help text and its values.
#[derive(Debug)]
pub struct Family(pub(super) MetricFamily);

impl Family {
    /// Creates a gauge without values.
    pub fn gauge(name: &str, help: &str) -> Self {
        Self(family(name, help, MetricType::GAUGE, Vec::new()))
    }

    /// Creates a counter without values.
    pub fn counter(name: &str, help: &str) -> Self {
        Self(family(name, help, MetricType::COUNTER, Vec::new()))
    }

    /// Sets a single value that has no labels.
    pub fn value(self, value: f64) -> Self {
        self.with([metric(&[], value)].into())
    }

    /// Sets several values, each with its labels.
    pub fn with_labels(self, values: impl IntoIterator<Item = (Labels, f64)>) -> Self {
        let values = values.into_iter();
        self.with(
            values
                .map(|(labels, value)| metric(&borrowed(&labels), value))
                .collect(),
        )
    }

    /// Creates a histogram metric with the buckets and the sum of `taken`.
    pub fn histogram(name: &str, help: &str, labels: &Labels, taken: &Histogram) -> Self {
        Self(histogram(name, help, &borrowed(labels), taken))
    }

    /// Sets several values that differ in the value of one label.
    pub fn labelled<L: AsRef<str>>(
        self,
        label: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> Self {
        let values = values.into_iter();
        self.with(
            values
                .map(|(name, value)| metric(&[(label, name.as_ref())], value))
                .collect(),
        )
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

fn pairs(labels: &[(&str, &str)]) -> Vec<LabelPair> {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    labels.iter().map(pair).collect()
}

fn histogram(name: &str, help: &str, labels: &[(&str, &str)], taken: &Histogram) -> MetricFamily {
    let mut value = HistogramValue::default();
    let mut total = 0;
    let mut buckets = Vec::new();
    for (bound, count) in taken.cumulative() {
        total = count;
        // The last bucket has no upper bound; the encoder writes it from the sample count.
        if bound.is_finite() {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            buckets.push(bucket);
        }
    }
    value.set_bucket(buckets);
    value.set_sample_count(total);
    value.set_sample_sum(taken.seconds());
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_histogram(value);
    family(name, help, MetricType::HISTOGRAM, vec![metric])
}
