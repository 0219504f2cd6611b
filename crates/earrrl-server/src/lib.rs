//! The server part of the `earrrl` binary, as a library so that its tests and fuzz targets reach it.
#![cfg(feature = "serve")]

pub mod config;
pub mod engine;
pub mod envoy;
pub mod metrics;
pub mod protocol;
#[cfg(feature = "redis")]
pub mod redis;
pub mod serve;
pub mod service;
