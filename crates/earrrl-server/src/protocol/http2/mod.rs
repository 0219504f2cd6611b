//! HTTP/2 connections, with requests of HTTP and calls of gRPC alike.
//!
//! `connection` accepts requests and enforces the connection's deadlines, `exchange` answers one
//! request with a service, and `held` counts the memory of all requests of a connection.

mod connection;
mod date;
pub(super) mod exchange;
pub(super) mod held;
mod term;
mod watched;

pub(super) use connection::{Arrived, serve};
