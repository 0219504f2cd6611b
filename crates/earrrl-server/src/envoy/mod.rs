//! What Envoy's operators use today: the configuration of envoyproxy/ratelimit, unchanged.
//!
//! `yaml` and `file` read it, `tree` matches a request's descriptors against it.

pub mod file;
pub mod load;
pub mod tree;
pub mod unit;
mod wildcard;
mod yaml;

pub use wildcard::Wildcard;
pub use yaml::Place;
