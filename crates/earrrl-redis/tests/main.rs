//! The tests against Redis or Valkey, in one binary.

mod agreement;
mod audit;
mod clocks;
mod commits;
mod concurrent;
mod conformance;
mod cuts;
mod distance;
mod faults;
mod handover;
mod lists;
mod middleware;
mod near;
mod outage;
mod receipts;
mod reservations;
mod script;
mod sentinel;
mod shared;
mod support;
mod tls;
