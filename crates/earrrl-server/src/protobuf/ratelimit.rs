//! The rate limit service, `envoy.service.ratelimit.v3`.

use std::borrow::Cow;

use super::{Duration, HeaderValue, Struct};

/// A request for a decision on descriptors.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// The domain of all descriptors.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors; the request is denied if one of them is over its limit.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The hits of each descriptor that has none of its own; 0 stands for 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// A list of entries that a limit may match, `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    /// The entries, from the outermost level of the configuration.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A limit to apply instead of the configured one.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// The hits of this descriptor.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// True if the hits are given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// A key and its value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value, often that of a header.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

impl Entry {
    /// Returns the value as a text, to be shown.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.value)
    }
}

/// A limit that a descriptor brings.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitOverride {
    /// Requests per unit of time.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The number of the unit.
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

/// The answer to a [`RateLimitRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// The verdict on the request.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// The verdict on each descriptor, in the request's order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Headers for the application behind Envoy.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body of the client's response if the request is denied.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
    /// Metadata for Envoy's filters and access logs.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// The verdict on one descriptor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    /// The verdict.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit that was applied, if any.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// Hits that are left in this unit of time.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// The time until the limit is reset.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// A limit that was applied.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimit {
    /// Requests per unit of time.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The number of the unit.
    #[prost(int32, tag = "2")]
    pub unit: i32,
    /// The limit's name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Not set.
    Unknown = 0,
    /// Within the limit.
    Ok = 1,
    /// Over the limit.
    OverLimit = 2,
}
