//! Running the server: threads, sockets, time-outs, shutdown.

pub mod accept;
pub mod access;
pub mod buffers;
pub mod connections;
pub mod descriptors;
pub mod run;
pub mod server;
pub mod workers;
