//! The parts of a suggested rule that follow from how a log was read.

/// The parts of a suggested rule that follow from how the log was read: which requests, by which key,
/// at which cost.
#[derive(Debug, Default)]
pub struct RuleTerms {
    /// The names of the key's parts, as a server's configuration has them.
    pub key: Vec<String>,
    /// The attributes that a request must have, with the values.
    pub conditions: Vec<(String, String)>,
    /// The field `cost` of the rule, in TOML; `None` if every request costs 1.
    pub cost: Option<String>,
    /// The part of a key that is the client's address, such as `client` or `client/24`.
    pub client: String,
    /// The sentences about what an operator must know beside the rule.
    pub remarks: Vec<String>,
    /// The flags of the key, the conditions and the costs; empty, or with a space at the end.
    pub flags: String,
}

impl RuleTerms {
    /// Returns true if only the requests for certain paths were read.
    pub(super) fn are_for_a_path(&self) -> bool {
        self.conditions.iter().any(|(name, _)| name == "path")
    }
}
