//! The parts that all OTLP messages have: the description of the server, and attributes.

use opentelemetry_proto::tonic::common::v1::any_value::Value as OtlpValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;

/// Returns the description of this server.
pub(super) fn resource() -> Resource {
    let version = env!("CARGO_PKG_VERSION");
    let attributes = [("service.name", "earrrl"), ("service.version", version)];
    Resource {
        attributes: attributes
            .map(|(key, value)| attribute(key, text(value)))
            .into(),
        ..Resource::default()
    }
}

/// Returns the description of the part of the server that measures, which is all of it.
pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "earrrl".to_owned(),
        ..InstrumentationScope::default()
    }
}

/// Returns an attribute with this value.
pub(super) fn attribute(key: &str, value: OtlpValue) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue {
        key: key.to_owned(),
        value,
        ..KeyValue::default()
    }
}

/// Returns a text as an attribute's value.
pub(super) fn text(value: &str) -> OtlpValue {
    OtlpValue::StringValue(value.to_owned())
}
