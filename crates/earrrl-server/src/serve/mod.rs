//! Running the server: threads, sockets, time-outs, shutdown.

pub mod accept;
pub mod allocator;
pub mod descriptors;
mod dial;
pub mod handover;
pub mod run;
pub mod socket;
mod stamps;
pub mod workers;
mod xds;
