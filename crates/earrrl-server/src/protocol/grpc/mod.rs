//! gRPC: Envoy's rate limit service, and Kuadrant's of the same messages.
//!
//! `serve` is a connection by the frames of HTTP/2 and `call` one unary call, without a layer between;
//! what is asked rarely, health and reflection, are tonic's services (`others`).

mod authz;
mod call;
mod message;
mod others;
mod reply;
pub mod serve;
mod services;

pub use services::{Services, services};
