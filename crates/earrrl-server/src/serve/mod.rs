//! Running the server: threads, sockets, time-outs, shutdown.

pub mod accept;
pub mod buffers;
pub mod connections;
pub mod workers;
