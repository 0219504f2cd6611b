//! The protocols of clients. Each keeps its codec, which handles only bytes, apart from its
//! sockets.

mod authz;
mod bearer;
mod first;
pub mod grpc;
pub mod http;
mod http2;
mod linger;
pub mod resp;
mod response;
pub mod seconds;
