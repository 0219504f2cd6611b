//! HTTP/2 connections, which carry requests of the HTTP API and gRPC calls alike.
//!
//! `connection` accepts requests and enforces the connection's deadlines, `exchange` passes one
//! request to a service and sends the response, `unread` drops the bodies that services leave, and `held` counts the memory of all requests of a
//! connection.

mod connection;
mod date;
pub(super) mod exchange;
pub(super) mod held;
mod term;
pub(super) mod unread;
mod watched;

pub(super) use connection::{Arrived, serve};
