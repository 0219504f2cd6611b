//! The parts of the `earrrl` binary that its tests and fuzz targets reach.
//!
//! A module knows those before it only: `path`, `config`, `log`, `metrics`, `engine`,
//! `service`, `connections`, `stream`, `tls`, `server`, `protocol`, `serve`.

pub mod config;
pub mod connections;
pub mod engine;
pub mod log;
pub mod metrics;
pub mod path;
pub mod protocol;
pub mod serve;
pub mod server;
pub mod service;
pub mod stream;
pub mod tls;
