//! The native module of the Python package `earrrl`: the limiters of the library, as Python classes.
//!
//! Everything that decides is in the crates `earrrl` and `earrrl-tower`, and what the packages for Python and Node share
//! is in `earrrl-bindings`. This crate converts arguments, results and errors, and nothing else.

mod clock;
mod decision;
mod engine;
mod error;
mod function;
mod input;
mod limiter;
mod rate_limits;
mod request_rule;
mod resp;
mod server;
mod storage;

/// The native module of the package `earrrl`.
#[pyo3::pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::clock::ManualClock;
    #[pymodule_export]
    use crate::decision::Decision;
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::limiter::Limiter;
    #[pymodule_export]
    use crate::rate_limits::{Passing, RateLimits, Refusal, SettlementHandle};
    #[pymodule_export]
    use crate::request_rule::Rule;
    #[pymodule_export]
    use crate::server::ServerWindows;
    #[pymodule_export]
    use crate::storage::Windows;
    #[expect(non_upper_case_globals, reason = "Python's name")]
    #[pymodule_export]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
