//! What happens while Redis is gone, and what is made up for when it is back.

pub(crate) mod hand_over;
pub(crate) mod policy;
pub(crate) mod settle;
