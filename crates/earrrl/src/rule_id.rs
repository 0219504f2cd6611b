//! The ids of prepared rules.

/// The id of a rule that an engine has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u32);
