//! The HTTP API, with JSON bodies.

mod authz;
mod body;
mod check;
pub mod events;
mod host;
pub mod lines;
mod routes;
pub mod serve;
mod socket;
mod top;

pub use routes::{admin_router, reserved_router, router};
