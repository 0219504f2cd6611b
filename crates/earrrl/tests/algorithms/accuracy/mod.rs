//! Bounds on the difference of states and verdicts from exact arithmetic.

mod credit_pool;
pub(crate) mod double_double;
mod one_time_state;
