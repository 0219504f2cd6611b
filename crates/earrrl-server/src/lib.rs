//! The parts of the `earrrl` binary that its tests and fuzz targets reach.
//!
//! A module knows those before it only: `address`, `path`, `config`, `log`, `metrics`, `engine`,
//! `service`, `connections`, `stream`, `tls`, `server`, `protocol`, `serve`.

pub mod address;
#[cfg(feature = "serve")]
pub mod config;
#[cfg(feature = "serve")]
pub mod connections;
#[cfg(feature = "serve")]
pub mod engine;
#[cfg(feature = "serve")]
pub mod log;
#[cfg(feature = "serve")]
pub mod metrics;
pub mod path;
#[cfg(feature = "serve")]
pub mod protocol;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(feature = "serve")]
pub mod server;
#[cfg(feature = "serve")]
pub mod service;
#[cfg(feature = "serve")]
pub mod stream;
#[cfg(feature = "serve")]
pub mod tls;
