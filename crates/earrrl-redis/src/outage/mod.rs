//! Decisions while Redis is gone, and the work that follows when it is back.

pub(crate) mod hand_over;
pub(crate) mod policy;
pub(crate) mod settle;
