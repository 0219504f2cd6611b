//! The protobuf messages of Envoy's services, with the fields that this server reads or writes.
//!
//! Numbers and types are those of Envoy's `.proto` files; `tests/protobuf.rs` compares. Other fields are skipped when
//! a message is read. One type differs: Envoy copies a client's headers into fields of type `string` as they are, and a
//! decoder that wants UTF-8 refuses the whole message, upon which Envoy lets the client pass. What a client can write is
//! declared as `bytes` here, which are the same on the wire.

pub mod authorization;
pub mod discovery;
pub mod ratelimit;

pub use prost_types::{Any, Duration, ListValue, Struct, Value, value};

/// An HTTP header, `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValue {
    /// The header's name, in lower case.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The value, where Envoy is configured to send headers unchanged; `value` is empty then.
    #[prost(bytes = "vec", tag = "3")]
    pub raw_value: Vec<u8>,
}

/// An error or success, `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RpcStatus {
    /// The gRPC status code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The reason, for people.
    #[prost(string, tag = "2")]
    pub message: String,
}
