//! The protocols by which clients reach the server: HTTP, gRPC and RESP. Each protocol keeps its
//! codec, which handles only bytes, apart from the code that handles sockets.

mod authz;
mod bearer;
pub mod grpc;
pub mod http;
mod http2;
mod linger;
pub mod resp;
mod response;
