//! The parts of the `earrrl` binary, as a library so that its tests and fuzz targets reach them.

pub mod config;
pub mod protocol;
pub mod serve;
