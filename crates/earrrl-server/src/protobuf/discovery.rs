//! The aggregated discovery service, `envoy.service.discovery.v3`, and the configuration that it sends,
//! `ratelimit.config.ratelimit.v3`.

use super::{Any, RpcStatus, Struct};

/// A request for resources, or the answer to a [`DiscoveryResponse`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryRequest {
    /// The version of the resources in force; empty at first.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// This server.
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce of the response that is answered.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// The error, if the response was rejected.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<RpcStatus>,
}

/// A server that asks for resources, `envoy.config.core.v3.Node`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Node {
    /// The server's name.
    #[prost(string, tag = "1")]
    pub id: String,
}

/// All resources of a type.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryResponse {
    /// The version of the resources.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The resources.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// A number for this response, which the answer repeats.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// The descriptors of a domain.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitConfig {
    /// The resource's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domain.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// The outermost descriptors.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// A descriptor with its limit and the descriptors below it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    /// The key that an entry must have.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value that an entry must have; empty for any value.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The limit.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    /// The descriptors for the next entry.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// True if the limit is counted and not enforced.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// True if each value has metrics of its own.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// True if the limit is enforced only when all such limits of a request are over.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    /// Metadata for responses.
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// A limit.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitPolicy {
    /// The number of the unit of time.
    #[prost(int32, tag = "1")]
    pub unit: i32,
    /// Requests per unit.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// True if nothing is limited.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// The limit's name.
    #[prost(string, tag = "4")]
    pub name: String,
    /// Limits that this one replaces.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<RateLimitReplace>,
}

/// The name of a limit that is replaced.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitReplace {
    /// The limit's name.
    #[prost(string, tag = "1")]
    pub name: String,
}
