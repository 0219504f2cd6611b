//! Simulates clients under rules, and writes their attempts as tables and figures.
//!
//! A [`Client`] describes when requests are sent and what happens after a denial. [`run`] decides
//! the requests of several clients under one rule, in the order of their times. The same seed gives
//! the same requests on every machine.

mod client;
mod outcome;
mod run;

pub use client::{Client, MAX_WORKERS, Pattern, Reaction};
pub use outcome::{Scenario, SimulatedOutcome, figure, write_csv, write_html, write_table};
pub use run::{Attempt, MAX_ATTEMPTS, run};
