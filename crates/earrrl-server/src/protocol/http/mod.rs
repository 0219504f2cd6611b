//! The HTTP API, with JSON bodies.

mod authz;
mod body;
mod check;
mod dashboard;
pub mod events;
mod host;
pub mod lines;
mod overrides;
mod refusal;
mod request;
mod reserve;
mod routes;
pub mod serve;
mod socket;
mod top;

pub use routes::{admin_router, reserved_router, router};
