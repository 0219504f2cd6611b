//! The messages of Envoy's rate limit service as proto3 JSON, for `POST /json`.
//!
//! In requests, field names may be in camelCase or snake_case, enums a name or a number, and 64-bit
//! numbers a number or a string. In responses, fields with the default value are left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::{Value as Json, json};

use crate::config::envoy::unit::Unit;
use crate::protobuf::ratelimit::{
    DescriptorStatus, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
    RateLimitResponse,
};
use crate::protobuf::value::Kind;
use crate::protobuf::{HeaderValue, Struct, Value};

/// The largest number, 2^53, up to which a double represents every whole number exactly.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Parses the JSON body of a request.
///
/// # Errors
/// Returns a message that describes the error if the body is not a valid request.
pub fn request(body: &[u8]) -> Result<RateLimitRequest, String> {
    let request: JsonRequest = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let descriptors = request.descriptors.into_iter().map(descriptor);
    Ok(RateLimitRequest {
        domain: request.domain,
        descriptors: descriptors.collect::<Result<_, _>>()?,
        hits_addend: number(request.hits_addend, "hitsAddend")?,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
#[derive(Default)]
struct JsonRequest {
    #[serde(deserialize_with = "or_default")]
    domain: String,
    #[serde(deserialize_with = "or_default")]
    descriptors: Vec<Descriptor>,
    #[serde(alias = "hits_addend")]
    hits_addend: JsonNumber,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct Descriptor {
    #[serde(deserialize_with = "or_default")]
    entries: Vec<JsonEntry>,
    limit: Option<JsonOverride>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<JsonNumber>,
    #[serde(alias = "is_negative_hits", deserialize_with = "or_default")]
    is_negative_hits: bool,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct JsonEntry {
    #[serde(deserialize_with = "or_default")]
    key: String,
    #[serde(deserialize_with = "or_default")]
    value: String,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct JsonOverride {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: JsonNumber,
    unit: UnitName,
}

/// Deserializes a field in which `null` means the default value.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A whole number, sent as a number or as a string. `null` means zero.
#[derive(Deserialize, Default)]
#[serde(try_from = "Json")]
struct JsonNumber(u64);

/// The number of a limit's time unit, sent as a name or as a number.
#[derive(Deserialize, Default)]
#[serde(try_from = "Json")]
struct UnitName(i32);

impl TryFrom<Json> for JsonNumber {
    type Error = String;

    fn try_from(json: Json) -> Result<Self, String> {
        let text = json.as_str().and_then(|text| text.parse().ok());
        let whole = |number: &f64| number.fract() == 0.0 && (0.0..=EXACT).contains(number);
        let float = json.as_f64().filter(whole).map(|number| number as u64);
        let nothing = json.is_null().then_some(0);
        let number = json.as_u64().or(text).or(float).or(nothing).map(Self);
        number.ok_or_else(|| format!("expected a whole number from 0, not {json}"))
    }
}

impl TryFrom<Json> for UnitName {
    type Error = String;

    fn try_from(json: Json) -> Result<Self, String> {
        let by_name = |name: &str| match name {
            "UNKNOWN" => Some(0),
            name => Unit::parse(name)
                .filter(|_| name == name.to_uppercase())
                .map(Unit::number),
        };
        let number = json.as_i64().or(json.is_null().then_some(0));
        let number = number.and_then(|number| i32::try_from(number).ok());
        let unit = number.or_else(|| json.as_str().and_then(by_name)).map(Self);
        unit.ok_or_else(|| format!("expected a unit, as \"MINUTE\", not {json}"))
    }
}

fn number(number: JsonNumber, name: &str) -> Result<u32, String> {
    u32::try_from(number.0).map_err(|_| format!("{name}: {} is above {}", number.0, u32::MAX))
}

fn descriptor(from: Descriptor) -> Result<RateLimitDescriptor, String> {
    let entry = |JsonEntry { key, value }| Entry {
        key,
        value: value.into_bytes(),
    };
    let limit = |limit: JsonOverride| {
        Ok::<_, String>(RateLimitOverride {
            requests_per_unit: number(limit.requests_per_unit, "requestsPerUnit")?,
            unit: limit.unit.0,
        })
    };
    Ok(RateLimitDescriptor {
        entries: from.entries.into_iter().map(entry).collect(),
        limit: from.limit.map(limit).transpose()?,
        hits_addend: from.hits_addend.map(|number| number.0),
        is_negative_hits: from.is_negative_hits,
    })
}

/// Returns a response of the rate limit service as JSON.
pub fn response(response: &RateLimitResponse) -> Json {
    let mut object = serde_json::Map::new();
    object.insert("overallCode".into(), code(response.overall_code).into());
    object.insert(
        "statuses".into(),
        response.statuses.iter().map(status).collect(),
    );
    for (name, headers) in [
        ("responseHeadersToAdd", &response.response_headers_to_add),
        ("requestHeadersToAdd", &response.request_headers_to_add),
    ] {
        let header = |header: &HeaderValue| json!({"key": header.key, "value": header.value});
        if !headers.is_empty() {
            object.insert(name.into(), headers.iter().map(header).collect());
        }
    }
    if !response.raw_body.is_empty() {
        object.insert("rawBody".into(), STANDARD.encode(&response.raw_body).into());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        object.insert("dynamicMetadata".into(), from_struct(metadata));
    }
    object.into()
}

fn status(status: &DescriptorStatus) -> Json {
    let mut object = serde_json::Map::new();
    object.insert("code".into(), code(status.code).into());
    if let Some(limit) = &status.current_limit {
        let mut current = serde_json::Map::new();
        if !limit.name.is_empty() {
            current.insert("name".into(), limit.name.as_str().into());
        }
        if limit.requests_per_unit > 0 {
            current.insert("requestsPerUnit".into(), limit.requests_per_unit.into());
        }
        if let Some(unit) = Unit::from_number(limit.unit) {
            current.insert("unit".into(), unit.name().to_uppercase().into());
        }
        object.insert("currentLimit".into(), current.into());
    }
    if status.limit_remaining > 0 {
        object.insert("limitRemaining".into(), status.limit_remaining.into());
    }
    if let Some(reset) = &status.duration_until_reset {
        object.insert(
            "durationUntilReset".into(),
            format!("{}s", reset.seconds).into(),
        );
    }
    object.into()
}

fn code(code: i32) -> &'static str {
    match code {
        1 => "OK",
        2 => "OVER_LIMIT",
        _ => "UNKNOWN",
    }
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
