//! The tests of the middleware through tower's public interface, in one binary.

mod behaviour;
mod faults;
mod forged;
mod obeying;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod serving;
mod support;
