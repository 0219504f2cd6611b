//! Events of clients as OTLP log records.

use earrrl::Nanos;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as OtlpValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use serde_json::Value;

use super::parts::{attribute, resource, scope, text};
use crate::protocol::http::events::described;
use crate::service::event_source::RuleEvent;

/// Returns the message with these events, which happened within a second before `now`.
pub(super) fn request(events: Vec<RuleEvent>, now: Nanos) -> ExportLogsServiceRequest {
    let log_records = events
        .into_iter()
        .map(|event| record(&described(event, now), now))
        .collect();
    let scope_logs = ScopeLogs {
        scope: Some(scope()),
        log_records,
        ..ScopeLogs::default()
    };
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(resource()),
            scope_logs: vec![scope_logs],
            ..ResourceLogs::default()
        }],
    }
}

/// Returns the record of an event: its name is the kind of the change, and its attributes are the event's fields.
fn record(event: &Value, now: Nanos) -> LogRecord {
    let kind = event["event"].as_str().unwrap_or_default();
    let severity = if kind == "limited" {
        SeverityNumber::Warn
    } else {
        SeverityNumber::Info
    };
    let fields = event.as_object().into_iter().flatten();
    let attributes: Vec<KeyValue> = fields
        .filter(|(name, _)| *name != "event" && *name != "at")
        .filter_map(|(name, value)| Some(attribute(&format!("earrrl.{name}"), converted(value)?)))
        .collect();
    LogRecord {
        time_unix_nano: now.get(),
        observed_time_unix_nano: now.get(),
        severity_number: severity.into(),
        body: Some(AnyValue {
            value: Some(text(kind)),
        }),
        event_name: format!("earrrl.{kind}"),
        attributes,
        ..LogRecord::default()
    }
}

/// Returns a field of an event as an attribute's value; `None` if the field is null.
fn converted(value: &Value) -> Option<OtlpValue> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => OtlpValue::BoolValue(*value),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => OtlpValue::IntValue(whole),
            None => OtlpValue::DoubleValue(number.as_f64()?),
        },
        Value::String(value) => text(value),
        other => text(&other.to_string()),
    })
}
