//! Simulated clients through rules: a scenario in, attempts and figures out.

mod article;
mod outcome;
mod scenario;

pub use article::{Name, draw};
pub use outcome::{SimulatedOutcome, figure, write_csv, write_table};
pub use scenario::Scenario;
