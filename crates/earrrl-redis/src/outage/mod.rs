//! Decisions while Redis is not reachable, and the work that remains afterwards.

pub(crate) mod hand_over;
pub(crate) mod policy;
pub(crate) mod settle;
