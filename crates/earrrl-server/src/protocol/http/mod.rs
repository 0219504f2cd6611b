//! HTTP/1.1 and JSON.

mod answer;
mod authz;
mod body;
mod clients;
mod envoy;
mod headers;
mod host;
mod problem;
mod routes;
pub mod serve;

pub use routes::{admin_router, reserved_router, router};
