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

    /// Creates a histogram metric with several values, each with its labels.
    pub fn histograms(
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, Buckets)>,
    ) -> Self {
        let values = values.into_iter();
        let values = values.map(|(labels, buckets)| buckets.metric(&borrowed(&labels)));
        Self(family(name, help, MetricType::HISTOGRAM, values.collect()))
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
    let buckets = Buckets {
        cumulative: taken.cumulative().collect(),
        sum: taken.seconds(),
    };
    family(
        name,
        help,
        MetricType::HISTOGRAM,
        vec![buckets.metric(labels)],
    )
}

/// The value of a histogram metric.
#[derive(Debug)]
pub struct Buckets {
    /// The upper bound of each bucket, with the count up to it. The last bound is infinite.
    cumulative: Vec<(f64, u64)>,
    sum: f64,
}

impl Buckets {
    /// Creates the value from the bounds, and one count more than there are bounds.
    pub fn new(bounds: &[f64], counts: &[u64], sum: f64) -> Self {
        let counts = counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        });
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        Self {
            cumulative: bounds.zip(counts).collect(),
            sum,
        }
    }

    fn metric(&self, labels: &[(&str, &str)]) -> Metric {
        let mut value = HistogramValue::default();
        let buckets = self
            .cumulative
            .iter()
            .filter(|(bound, _)| bound.is_finite());
        let buckets = buckets.map(|(bound, count)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(*count);
            bucket
        });
        value.set_bucket(buckets.collect());
        // The last bucket has no upper bound; the encoder writes it from the sample count.
        value.set_sample_count(self.cumulative.last().map_or(0, |(_, count)| *count));
        value.set_sample_sum(self.sum);
        let mut metric = Metric::from_label(pairs(labels));
        metric.set_histogram(value);
        metric
    }
}
