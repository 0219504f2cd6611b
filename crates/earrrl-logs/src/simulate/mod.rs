//! Simulates clients under rules: reads a scenario, and writes its attempts as tables and figures.

mod article;
mod outcome;
mod scenario;

pub use article::{FigureName, draw};
pub use outcome::{SimulatedOutcome, figure, write_csv, write_table};
pub use scenario::{Scenario, parse_time};
