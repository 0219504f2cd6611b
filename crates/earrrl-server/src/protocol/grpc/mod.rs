//! The gRPC API: the rate limit services of Envoy and Kuadrant, which use the same messages, and
//! Envoy's external authorization.
//!
//! `serve` handles the HTTP/2 requests of a connection, and `call` one unary call. They use `h2`
//! directly for speed. The rarely called services for health and reflection are implemented by
//! tonic.

mod authz;
mod call;
pub mod serve;

pub use serve::{Services, services};
