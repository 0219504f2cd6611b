//! The descriptors that a control plane sends, which a file of envoyproxy/ratelimit could have too.
//!
//! A message is converted to the same tree as a YAML file, so that the same code validates both.

use super::file::{self, DomainConfig};
use crate::config::ConfigError;
use crate::config::yaml::{Position, Value, YamlNode};
use crate::protobuf::discovery::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
use crate::protobuf::unit::Unit;
use crate::protobuf::value::Kind;
use crate::protobuf::{Struct, Value as ProtoValue};

/// The type URL of the resources that are requested from the control plane.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Validates one resource, which holds the descriptors of one domain.
///
/// # Errors
/// Returns all mistakes in the resource, without places, since it has no file.
pub fn domain(config: &RateLimitConfig) -> Result<DomainConfig, ConfigError> {
    let root = map([
        ("domain", text(&config.domain)),
        (
            "descriptors",
            list(config.descriptors.iter().map(descriptor)),
        ),
    ]);
    file::read(&root, &format!("xds {}", config.name), &mut Vec::new())
}

fn descriptor(from: &RateLimitDescriptor) -> YamlNode {
    let mut entries = vec![
        ("key", text(&from.key)),
        ("value", text(&from.value)),
        ("shadow_mode", truth(from.shadow_mode)),
        ("quota_mode", truth(from.quota_mode)),
        ("detailed_metric", truth(from.detailed_metric)),
        ("descriptors", list(from.descriptors.iter().map(descriptor))),
    ];
    entries.extend(
        from.rate_limit
            .as_ref()
            .map(|policy| ("rate_limit", rate_limit(policy))),
    );
    entries.extend(
        from.metadata
            .as_ref()
            .map(|metadata| ("metadata", object(metadata))),
    );
    map(entries)
}

fn rate_limit(from: &RateLimitPolicy) -> YamlNode {
    let unit = Unit::from_number(from.unit).map_or("", Unit::name);
    let replaced = from
        .replaces
        .iter()
        .map(|replace| map([("name", text(&replace.name))]));
    map([
        ("unit", text(unit)),
        (
            "requests_per_unit",
            plain(from.requests_per_unit.to_string()),
        ),
        ("unlimited", truth(from.unlimited)),
        ("name", text(&from.name)),
        ("replaces", list(replaced)),
    ])
}

fn object(from: &Struct) -> YamlNode {
    let field = |(key, value): (&String, &ProtoValue)| (text(key), value_of(value));
    node(Value::Map(from.fields.iter().map(field).collect()))
}

fn value_of(from: &ProtoValue) -> YamlNode {
    match &from.kind {
        None | Some(Kind::NullValue(_)) => plain("null".into()),
        Some(Kind::BoolValue(value)) => truth(*value),
        Some(Kind::NumberValue(number)) => plain(number.to_string()),
        Some(Kind::StringValue(value)) => text(value),
        Some(Kind::ListValue(values)) => list(values.values.iter().map(value_of)),
        Some(Kind::StructValue(fields)) => object(fields),
    }
}

fn map<'a>(entries: impl IntoIterator<Item = (&'a str, YamlNode)>) -> YamlNode {
    node(Value::Map(
        entries
            .into_iter()
            .map(|(key, value)| (text(key), value))
            .collect(),
    ))
}

fn list(nodes: impl Iterator<Item = YamlNode>) -> YamlNode {
    node(Value::List(nodes.collect()))
}

fn text(value: &str) -> YamlNode {
    node(Value::Text(value.to_owned()))
}

fn truth(value: bool) -> YamlNode {
    plain(value.to_string())
}

fn plain(value: String) -> YamlNode {
    node(Value::Plain(value))
}

fn node(value: Value) -> YamlNode {
    YamlNode {
        place: Position::default(),
        value,
    }
}
