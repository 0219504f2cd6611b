//! The messages of Envoy's rate limit service as proto3 JSON, for `POST /json`.
//!
//! In requests, field names may be in camelCase or snake_case, enums a name or a number, and 64-bit
//! numbers a number or a string; `null` means the default value. In responses, fields with the default value are
//! left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost_types::{ListValue, Struct, Value};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize as _, Serializer};
use serde_json::{Map, Value as Json};

use super::Duration;
use super::ratelimit::Unit;
use super::value::Kind;

/// The largest number, 2^53, up to which a double represents every whole number exactly.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Reads a field in which `null` means the default value.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads a text as bytes.
pub(super) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    or_default(deserializer).map(String::into_bytes)
}

/// Reads a whole number, which may be a number or a text.
pub(super) fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let json = Json::deserialize(deserializer)?;
    if json.is_null() {
        return Ok(None);
    }
    let text = json.as_str().and_then(|text| text.parse().ok());
    let is_whole = |number: &f64| number.fract() == 0.0 && (0.0..=EXACT).contains(number);
    let float = json.as_f64().filter(is_whole).map(|number| number as u64);
    let number = json.as_u64().or(text).or(float);
    let expected = || D::Error::custom(format!("expected a whole number from 0, not {json}"));
    number.map(Some).ok_or_else(expected)
}

/// Reads the number of hits of a request.
pub(super) fn hits_addend<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    small("hitsAddend", deserializer)
}

/// Reads the number of a limit.
pub(super) fn requests_per_unit<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<u32, D::Error> {
    small("requestsPerUnit", deserializer)
}

fn small<'de, D: Deserializer<'de>>(name: &str, deserializer: D) -> Result<u32, D::Error> {
    let number = whole(deserializer)?.unwrap_or_default();
    let above = |_| D::Error::custom(format!("{name}: {number} is above {}", u32::MAX));
    u32::try_from(number).map_err(above)
}

/// Reads a unit of time, which may be a name or a number.
pub(super) fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let json = Json::deserialize(deserializer)?;
    let by_name = |name: &str| match name {
        "UNKNOWN" => Some(0),
        name => Unit::parse(name)
            .filter(|_| name == name.to_uppercase())
            .map(Unit::number),
    };
    let number = json.as_i64().or(json.is_null().then_some(0));
    let number = number.and_then(|number| i32::try_from(number).ok());
    let number = number.or_else(|| json.as_str().and_then(by_name));
    number.ok_or_else(|| D::Error::custom(format!("expected a unit, as \"MINUTE\", not {json}")))
}

/// Returns true if a field has the default value, so that it is left out.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub(super) fn code_name<S: Serializer>(code: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match code {
        1 => "OK",
        2 => "OVER_LIMIT",
        _ => "UNKNOWN",
    })
}

pub(super) fn unit_name<S: Serializer>(unit: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    let name = Unit::from_number(*unit).map_or("unknown", Unit::name);
    serializer.serialize_str(&name.to_uppercase())
}

pub(super) fn base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

pub(super) fn seconds<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let seconds = duration.as_ref().map_or(0, |duration| duration.seconds);
    serializer.serialize_str(&format!("{seconds}s"))
}

pub(super) fn object<S: Serializer>(
    object: &Option<Struct>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    object.as_ref().map(from_struct).serialize(serializer)
}

fn from_struct(object: &Struct) -> Json {
    let field = |(key, value): (&String, &Value)| (key.clone(), from_value(value));
    Json::Object(object.fields.iter().map(field).collect())
}

fn from_value(value: &Value) -> Json {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(truth)) => (*truth).into(),
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 && number.abs() <= EXACT => {
            (*number as i64).into()
        }
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(from_value).collect(),
        Some(Kind::StructValue(object)) => from_struct(object),
    }
}

/// Converts a JSON object to its protobuf form.
pub fn to_struct(object: &Map<String, Json>) -> Struct {
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
