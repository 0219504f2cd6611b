//! The messages of reservations, `kuadrant.service.ratelimit.v1`.

use super::Duration;
use super::ratelimit::{Code, RateLimitDescriptor};

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
