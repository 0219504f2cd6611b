//! The protobuf messages of Envoy's services, with the fields that this server reads or writes.
//!
//! The numbers and types of fields are those of Envoy's `.proto` files, which `tests/protobuf.rs`
//! compares. Other fields are skipped when a message is read. One type differs: Envoy copies a
//! client's headers unchanged into fields of type `string`. A decoder that requires UTF-8 would
//! reject the whole message if a header is not UTF-8, and Envoy would let the request pass. So the
//! fields that a client can influence are declared as `bytes`, which has the same encoding.

pub mod authorization;
pub mod discovery;
pub mod json;
pub mod ratelimit;

pub use prost_types::{Any, Duration, ListValue, Struct, Value, value};

/// An HTTP header, `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, prost::Message, serde::Serialize)]
pub struct HeaderValue {
    /// The header's name, in lower case.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value of the header.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The value, where Envoy is configured to send headers unchanged; `value` is empty then.
    #[prost(bytes = "vec", tag = "3")]
    #[serde(skip)]
    pub raw_value: Vec<u8>,
}

/// An error or success, `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RpcStatus {
    /// The gRPC status code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The reason for the error, as text for people.
    #[prost(string, tag = "2")]
    pub message: String,
}
