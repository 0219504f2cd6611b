//! Runs the server: its threads, sockets, timeouts, reloads and shutdown.

pub mod accept;
pub mod allocator;
pub mod dial;
pub mod handover;
pub mod reload;
pub mod run;
pub mod workers;
