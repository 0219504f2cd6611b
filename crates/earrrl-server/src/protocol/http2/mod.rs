//! HTTP/2 connections, which carry requests of the HTTP API and gRPC calls alike.
//!
//! `connection` accepts requests and closes the connection in time, `exchange` passes one request to a service,
//! sends the response and drops what the service has left of the body, and `held` counts the memory of all
//! requests of a connection.

mod connection;
pub(super) mod exchange;
pub(super) mod held;

pub(super) use connection::{Arrived, serve};
