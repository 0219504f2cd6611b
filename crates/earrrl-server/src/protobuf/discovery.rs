//! The messages of Envoy's aggregated discovery service, `envoy.service.discovery.v3`, and of the
//! configuration that it sends, `ratelimit.config.ratelimit.v3`. The latter is serialized by the names of a YAML file.

use serde::Serialize;

use super::{Any, RpcStatus, Struct, json};

/// A request for resources, which also acknowledges or rejects the previous [`DiscoveryResponse`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryRequest {
    /// The version of the resources in force; empty before the first ones.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The identity of this server.
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    /// The type URL of the requested resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce of the response that is acknowledged or rejected.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// The error if the response is rejected.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<RpcStatus>,
}

/// A server that asks for resources, `envoy.config.core.v3.Node`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Node {
    /// The name by which the server identifies itself, its node id.
    #[prost(string, tag = "1")]
    pub id: String,
}

/// A response with all resources of one type.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryResponse {
    /// The version of the resources.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The encoded resources.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    /// The type URL of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce of this response, which the acknowledgement repeats.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// The descriptors of a domain, which are one resource.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct RateLimitConfig {
    /// The name of the resource.
    #[prost(string, tag = "1")]
    #[serde(skip)]
    pub name: String,
    /// The name of the domain.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// The descriptors of the first level.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// A descriptor with its limit and the descriptors below it.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct RateLimitDescriptor {
    /// The key that an entry must have.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value that an entry must have; empty for any value.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The limit of the descriptor, if it has one.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    /// The descriptors of the next level.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// True if the limit is counted but never enforced.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// True if each value of requests has metrics of its own.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// True if the limit is enforced only when all such limits of a request are over.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    /// The metadata that responses for this descriptor contain.
    #[prost(message, optional, tag = "8")]
    #[serde(serialize_with = "json::object")]
    pub metadata: Option<Struct>,
}

/// The limit of a descriptor.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct RateLimitPolicy {
    /// The number of the unit of time.
    #[prost(int32, tag = "1")]
    #[serde(serialize_with = "json::unit_name")]
    pub unit: i32,
    /// The number of requests that are allowed per unit of time.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// True if all requests are allowed.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// The name of the limit.
    #[prost(string, tag = "4")]
    pub name: String,
    /// The names of the limits that this limit replaces.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<RateLimitReplace>,
}

/// The name of a limit that another one replaces.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct RateLimitReplace {
    /// The name of the replaced limit.
    #[prost(string, tag = "1")]
    pub name: String,
}
