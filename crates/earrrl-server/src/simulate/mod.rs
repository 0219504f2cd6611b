//! Simulated clients through rules: a scenario in, attempts and figures out.

mod article;
mod outcome;
mod scenario;

pub(crate) use article::{Name, draw};
pub(crate) use outcome::{Outcome, figure, write_csv, write_table};
pub(crate) use scenario::Scenario;
