//! HTTP/1.1 and JSON.

pub(super) mod answer;
mod authz;
mod body;
mod check;
mod clients;
mod condition;
mod envoy;
mod headers;
mod host;
mod lines;
mod openapi;
pub(super) mod problem;
mod request;
mod routes;
pub mod serve;

pub use routes::{admin_router, reserved_router, router};
