//! The parts of the `earrrl` program that its tests and fuzz targets use.
//!
//! Each module depends only on modules before it in this list: `config`, `log`, `metrics`, `engine`, `service`,
//! `connections`, `proxy_protocol`, `stream`, `tls`, `server`, `protocol`, `serve`.

pub mod config;
pub mod connections;
pub mod engine;
pub mod log;
pub mod metrics;
pub mod protobuf;
pub mod protocol;
pub mod proxy_protocol;
pub mod serve;
pub mod server;
pub mod service;
pub mod stream;
pub mod tls;

/// Compiles the Rust in the documentation as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/distributed.md")]
#[doc = include_str!("../../../docs/state-files.md")]
struct Documentation;
