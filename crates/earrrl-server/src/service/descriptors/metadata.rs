//! The dynamic metadata of a response: the parsed request, and the metadata of the limits that
//! allow it.

use serde_json::Value as Json;

use super::asked::{AskedLimit, Source};
use super::verdict::Verdicts;
use crate::protobuf::ratelimit::{Entry, RateLimitRequest};
use crate::protobuf::value::Kind;
use crate::protobuf::{ListValue, Struct, Value};

type Object = serde_json::Map<String, Json>;

/// Returns the metadata of a response: `{domain, descriptors: [{entries: ["key=value"]}],
/// hitsAddend?, metadata?}`.
pub(super) fn of(
    request: &RateLimitRequest,
    limits: &[AskedLimit<'_>],
    verdicts: &Verdicts,
) -> Struct {
    let mut object = Object::new();
    object.insert("domain".into(), request.domain.as_str().into());
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entry = |entry: &Entry| Json::from(format!("{}={}", entry.key, entry.text()));
        let mut object = Object::new();
        object.insert(
            "entries".into(),
            descriptor.entries.iter().map(entry).collect(),
        );
        if let Some(hits) = &descriptor.hits_addend {
            object.insert("hitsAddend".into(), (*hits).into());
        }
        Json::Object(object)
    });
    object.insert("descriptors".into(), descriptors.collect());
    if request.hits_addend > 0 {
        object.insert("hitsAddend".into(), request.hits_addend.into());
    }
    let mut carried = Object::new();
    for (asked, verdict) in limits.iter().zip(&verdicts.each) {
        if let (Source::Tree(_, limit), false) = (&asked.source, verdict.enforced) {
            limit
                .metadata
                .iter()
                .for_each(|metadata| merge(&mut carried, metadata));
        }
    }
    if !carried.is_empty() {
        object.insert("metadata".into(), carried.into());
    }
    to_struct(&object)
}

/// Adds the entries of `from` to `into`. Existing values are kept; nested objects are merged.
fn merge(into: &mut Object, from: &Object) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (None, value) => {
                into.insert(key.clone(), value.clone());
            }
            (Some(Json::Object(known)), Json::Object(new)) => merge(known, new),
            _ => {}
        }
    }
}

/// Converts a JSON object to its protobuf form.
fn to_struct(object: &Object) -> Struct {
    let field = |(key, value): (&String, &Json)| (key.clone(), to_value(value));
    Struct {
        fields: object.iter().map(field).collect(),
    }
}

fn to_value(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(truth) => Kind::BoolValue(*truth),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(list) => Kind::ListValue(ListValue {
            values: list.iter().map(to_value).collect(),
        }),
        Json::Object(object) => Kind::StructValue(to_struct(object)),
    };
    Value { kind: Some(kind) }
}
