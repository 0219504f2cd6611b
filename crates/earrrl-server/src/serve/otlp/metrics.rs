//! Metric families as OTLP messages.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as NumberValue;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum,
};
use prometheus::proto::{MetricFamily, MetricType};

use super::parts::{attribute, resource, scope, text};

/// Returns the message with the values of these families, which were counted from `started` to `now`, both in
/// nanoseconds since the Unix epoch.
pub(super) fn request(
    families: &[MetricFamily],
    started: u64,
    now: u64,
) -> ExportMetricsServiceRequest {
    let metrics = families
        .iter()
        .map(|family| metric(family, started, now))
        .collect();
    let scope_metrics = ScopeMetrics {
        scope: Some(scope()),
        metrics,
        ..ScopeMetrics::default()
    };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource()),
            scope_metrics: vec![scope_metrics],
            ..ResourceMetrics::default()
        }],
    }
}

fn metric(family: &MetricFamily, started: u64, now: u64) -> Metric {
    let values = family.get_metric().iter();
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    let number = |one: &prometheus::proto::Metric, value| NumberDataPoint {
        attributes: attributes(one),
        start_time_unix_nano: started,
        time_unix_nano: now,
        value: Some(NumberValue::AsDouble(value)),
        ..NumberDataPoint::default()
    };
    let data = match family.get_field_type() {
        MetricType::COUNTER => Data::Sum(Sum {
            data_points: values
                .map(|one| number(one, one.get_counter().get_value()))
                .collect(),
            aggregation_temporality,
            is_monotonic: true,
        }),
        MetricType::HISTOGRAM => Data::Histogram(Histogram {
            data_points: values.map(|one| histogram(one, started, now)).collect(),
            aggregation_temporality,
        }),
        _ => Data::Gauge(Gauge {
            data_points: values
                .map(|one| number(one, one.get_gauge().get_value()))
                .collect(),
        }),
    };
    Metric {
        name: family.name().to_owned(),
        description: family.help().to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

/// Returns the counts of a histogram. Prometheus counts all values up to each bound, OTLP those of each bucket.
fn histogram(value: &prometheus::proto::Metric, started: u64, now: u64) -> HistogramDataPoint {
    let histogram = value.get_histogram();
    let mut below = 0;
    let buckets = histogram.get_bucket().iter().map(|bucket| {
        let count = bucket.cumulative_count() - below;
        below = bucket.cumulative_count();
        (bucket.upper_bound(), count)
    });
    let (explicit_bounds, mut bucket_counts): (Vec<_>, Vec<_>) = buckets.unzip();
    bucket_counts.push(histogram.get_sample_count() - below);
    HistogramDataPoint {
        attributes: attributes(value),
        start_time_unix_nano: started,
        time_unix_nano: now,
        count: histogram.get_sample_count(),
        sum: Some(histogram.get_sample_sum()),
        bucket_counts,
        explicit_bounds,
        ..HistogramDataPoint::default()
    }
}

fn attributes(value: &prometheus::proto::Metric) -> Vec<KeyValue> {
    value
        .get_label()
        .iter()
        .map(|label| attribute(label.name(), text(label.value())))
        .collect()
}
