//! The messages of Envoy's rate limit service, `envoy.service.ratelimit.v3`, with the units of time of its limits; and
//! the messages of reservations, `kuadrant.service.ratelimit.v1`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Duration, HeaderValue, Struct, json};

/// A request for a decision on one or more descriptors.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RateLimitRequest {
    /// The domain of all descriptors.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "json::or_default")]
    pub domain: String,
    /// The descriptors; the request is denied if one of them is over its limit.
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "json::or_default")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The number of hits of each descriptor that states none itself; 0 stands for 1.
    #[prost(uint32, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "json::hits_addend")]
    pub hits_addend: u32,
}

/// A list of entries that a limit may match, the message
/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RateLimitDescriptor {
    /// The entries, from the outermost level of the configuration.
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "json::or_default")]
    pub entries: Vec<Entry>,
    /// A limit to apply instead of the configured one.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// The number of hits of this descriptor.
    #[prost(message, optional, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "json::whole")]
    pub hits_addend: Option<u64>,
    /// True if the hits are refunded instead of counted.
    #[prost(bool, tag = "4")]
    #[serde(alias = "is_negative_hits", deserialize_with = "json::or_default")]
    pub is_negative_hits: bool,
}

/// One entry of a descriptor: a key and its value.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Entry {
    /// The key of the entry.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "json::or_default")]
    pub key: String,
    /// The value of the entry, often that of a header.
    #[prost(bytes = "vec", tag = "2")]
    #[serde(deserialize_with = "json::bytes")]
    pub value: Vec<u8>,
}

impl Entry {
    /// Returns the value as text for display.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.value)
    }
}

/// A limit that a request states for a descriptor.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RateLimitOverride {
    /// The number of requests that are allowed per unit of time.
    #[prost(uint32, tag = "1")]
    #[serde(
        alias = "requests_per_unit",
        deserialize_with = "json::requests_per_unit"
    )]
    pub requests_per_unit: u32,
    /// The number of the unit of time.
    #[prost(int32, tag = "2")]
    #[serde(deserialize_with = "json::unit")]
    pub unit: i32,
}

/// The response to a [`RateLimitRequest`].
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitResponse {
    /// The verdict on the request.
    #[prost(enumeration = "Code", tag = "1")]
    #[serde(serialize_with = "json::code_name")]
    pub overall_code: i32,
    /// The verdict on each descriptor, in the request's order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// The headers that are added to the response to the client.
    #[prost(message, repeated, tag = "3")]
    #[serde(skip_serializing_if = "json::is_default")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// The headers that are added to the request to the application behind Envoy.
    #[prost(message, repeated, tag = "4")]
    #[serde(skip_serializing_if = "json::is_default")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body of the client's response if the request is denied.
    #[prost(bytes = "vec", tag = "5")]
    #[serde(
        skip_serializing_if = "json::is_default",
        serialize_with = "json::base64"
    )]
    pub raw_body: Vec<u8>,
    /// Metadata for Envoy's filters and access logs.
    #[prost(message, optional, tag = "6")]
    #[serde(
        skip_serializing_if = "json::is_default",
        serialize_with = "json::object"
    )]
    pub dynamic_metadata: Option<Struct>,
}

/// The verdict on one descriptor.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DescriptorStatus {
    /// The verdict on the descriptor.
    #[prost(enumeration = "Code", tag = "1")]
    #[serde(serialize_with = "json::code_name")]
    pub code: i32,
    /// The limit that was applied, if any.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "json::is_default")]
    pub current_limit: Option<RateLimit>,
    /// The number of hits that are left in this unit of time.
    #[prost(uint32, tag = "3")]
    #[serde(skip_serializing_if = "json::is_default")]
    pub limit_remaining: u32,
    /// The time until the limit is reset.
    #[prost(message, optional, tag = "4")]
    #[serde(
        skip_serializing_if = "json::is_default",
        serialize_with = "json::seconds"
    )]
    pub duration_until_reset: Option<Duration>,
}

/// A limit that was applied to a descriptor.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    /// The number of requests that are allowed per unit of time.
    #[prost(uint32, tag = "1")]
    #[serde(skip_serializing_if = "json::is_default")]
    pub requests_per_unit: u32,
    /// The number of the unit of time.
    #[prost(int32, tag = "2")]
    #[serde(
        skip_serializing_if = "json::is_default",
        serialize_with = "json::unit_name"
    )]
    pub unit: i32,
    /// The name of the limit.
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "json::is_default")]
    pub name: String,
}

/// A verdict on a request or a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// No verdict is set.
    Unknown = 0,
    /// The request is within the limit.
    Ok = 1,
    /// The request is over the limit.
    OverLimit = 2,
}

/// A unit of time, with its number in protobuf messages. A limit's windows begin at multiples of the unit since the Unix
/// epoch, so a week begins on a Thursday.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// Seven days.
    Week = 7,
}

/// The units with their names and their lengths in seconds, in the order of their numbers.
const UNITS: [(Unit, &str, u64); 7] = [
    (Unit::Second, "second", 1),
    (Unit::Minute, "minute", 60),
    (Unit::Hour, "hour", 3600),
    (Unit::Day, "day", 86_400),
    (Unit::Month, "month", 30 * 86_400),
    (Unit::Year, "year", 365 * 86_400),
    (Unit::Week, "week", 7 * 86_400),
];

impl Unit {
    /// Returns the unit of this name, ignoring upper and lower case.
    pub fn parse(name: &str) -> Option<Self> {
        let mut units = UNITS.into_iter();
        let unit = units.find(|(_, known, _)| known.eq_ignore_ascii_case(name));
        unit.map(|(unit, ..)| unit)
    }

    /// Returns the unit of this number in protobuf messages.
    pub fn from_number(number: i32) -> Option<Self> {
        let mut units = UNITS.into_iter().map(|(unit, ..)| unit);
        units.find(|unit| unit.number() == number)
    }

    /// Returns the unit that is this many seconds long, or whose length in the calendar has this mean.
    pub fn from_secs(secs: u64) -> Option<Self> {
        match secs {
            2_629_746 => Some(Self::Month),
            31_556_952 => Some(Self::Year),
            _ => {
                let unit = UNITS.into_iter().find(|(.., length)| *length == secs);
                unit.map(|(unit, ..)| unit)
            }
        }
    }

    /// Returns the name of the unit.
    pub fn name(self) -> &'static str {
        UNITS[self as usize - 1].1
    }

    /// Returns the number of the unit in protobuf responses.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// Returns the length of the unit as a duration.
    pub fn duration(self) -> std::time::Duration {
        std::time::Duration::from_secs(UNITS[self as usize - 1].2)
    }
}

/// A request to reserve an amount under the limits of one or more descriptors.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReserveRequest {
    /// The domain of all descriptors.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors; the request is denied if one of them is over its limit.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The estimate, for each descriptor that states no number of hits itself.
    #[prost(uint64, tag = "3")]
    pub amount: u64,
    /// The time after which the reservation expires; the server's default if it is not set.
    #[prost(message, optional, tag = "4")]
    pub ttl: Option<Duration>,
}

/// The response to a [`ReserveRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReserveResponse {
    /// The verdict on the request.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The id for the commit; empty if the request is denied or matches no limit.
    #[prost(string, tag = "2")]
    pub reservation_id: String,
}

/// A request to correct a reservation to the actual amount.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitRequest {
    /// The domain of the reservation.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors of the reservation. They are charged if the reservation is unknown.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The id that the reservation returned.
    #[prost(string, tag = "3")]
    pub reservation_id: String,
    /// The actual amount.
    #[prost(uint64, tag = "4")]
    pub actual_amount: u64,
}

/// The response to a [`CommitRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitResponse {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_seconds_belong_together() {
        for (number, (unit, name, secs)) in (1..).zip(UNITS) {
            assert_eq!(Unit::parse(&name.to_uppercase()), Some(unit));
            assert_eq!(Unit::from_number(number), Some(unit));
            assert_eq!(Unit::from_secs(secs), Some(unit));
            assert_eq!(
                (unit.name(), unit.number(), unit.duration().as_secs()),
                (name, number, secs)
            );
        }
        assert_eq!((Unit::parse("unknown"), Unit::from_number(0)), (None, None));
    }
}
