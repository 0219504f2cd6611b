//! gRPC: Envoy's rate limit service, and Kuadrant's of the same messages.
//!
//! `call` is one unary call by the frames of HTTP/2, without a layer between; what is asked rarely,
//! health and reflection, are tonic's services.

mod authz;
mod call;
pub mod json;
mod reply;
pub mod serve;
mod services;

pub use services::{Services, services};
