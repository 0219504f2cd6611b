//! What holds for every algorithm, policy and history.

mod charge;
mod commit;
mod equivalence;
mod merging;
mod never;
mod peek;
mod refund;
mod remaining;
mod retry_after;
mod round_trip;
mod several_rules;
pub(crate) mod strategies;
mod windows;
