//! Rate limits for axum, hyper, tonic and anything that speaks tower.

pub mod address;
mod client_address;
mod forwarded;
pub mod headers;
pub mod problem;

pub use address::Prefixes;
pub use client_address::{AddressSource, ClientAddress};
