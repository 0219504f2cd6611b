//! The native module of the Node package `earrrl`: the limiters of the library, as classes.
//!
//! Everything that decides is in the crates `earrrl` and `earrrl-tower`, and what the packages for Python and Node share
//! is in `earrrl-bindings`. This crate converts arguments, results and errors, and nothing else.

mod clock;
mod engine;
mod figures;
mod input;
mod limiter;
mod rate_limits;
mod request_rule;
mod value;
mod windows;
