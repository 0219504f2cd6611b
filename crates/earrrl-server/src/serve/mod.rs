//! Runs the server: its threads, sockets, timeouts, reloads and shutdown.

pub mod accept;
mod again;
pub mod allocator;
mod balanced;
pub mod descriptors;
pub mod dial;
pub mod handover;
mod notify;
pub mod reload;
pub mod run;
pub mod socket;
mod stamps;
mod ticks;
pub mod workers;
mod xds;
