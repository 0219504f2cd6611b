//! Simulates clients under rules: reads a scenario, and writes its attempts as tables and figures.

mod outcome;
mod scenario;

pub use outcome::{ClientRun, SimulatedOutcome, figure, write_csv, write_table};
pub use scenario::{Scenario, parse_time};
