//! RESP2 and RESP3, the protocol of Redis clients.

pub mod codec;
pub mod reply;
pub mod serve;
pub mod session;
