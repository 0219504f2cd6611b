//! The tests of the middleware through tower's public interface, in one binary.

mod behaviour;
mod faults;
mod forged;
#[cfg(feature = "axum")]
mod gateway;
mod obeying;
mod reserved;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod serving;
mod support;
