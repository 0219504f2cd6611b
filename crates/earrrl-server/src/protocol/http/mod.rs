//! HTTP/1.1 and JSON.

mod answer;
mod body;
mod clients;
mod envoy;
mod headers;
mod problem;
mod routes;
pub mod serve;

pub use routes::router;
