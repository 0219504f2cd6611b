//! How clients ask: each protocol keeps its codec (pure bytes) apart from its sockets.

pub mod grpc;
pub mod http;
pub mod resp;
pub mod seconds;
