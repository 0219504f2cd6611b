//! Simulated clients through rules: a scenario in, attempts and figures out.

#[cfg(feature = "plot")]
mod article;
mod outcome;
mod scenario;

#[cfg(feature = "plot")]
pub(crate) use article::{Name, draw};
#[cfg(feature = "plot")]
pub(crate) use outcome::figure;
pub(crate) use outcome::{Outcome, write_csv, write_table};
pub(crate) use scenario::Scenario;
