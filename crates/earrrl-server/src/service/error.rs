//! The reason why a request got no answer.

use std::fmt;

use earrrl::{EngineError, RuleError};

/// The reason why a request got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AskError {
    /// No rule has this name.
    UnknownRule,
    /// Rules by their text are not allowed here.
    InlineRulesOff,
    /// The limit on the number of rules that are sent as text is reached.
    TooManyInlineRules {
        /// The largest number of such rules.
        most: usize,
    },
    /// A rule's text, a cost, an attribute or a descriptor that is invalid.
    Invalid(String),
    /// There is no configuration of descriptors yet.
    NotConfigured,
    /// The engine failed.
    Engine(EngineError),
}

impl AskError {
    pub(super) fn invalid(why: impl Into<String>) -> Self {
        Self::Invalid(why.into())
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownRule => f.write_str("rule: none has this name; see the list of rules"),
            Self::InlineRulesOff => f.write_str(
                "rule: expected a rule's name; rule texts need the server's --allow-inline-rules",
            ),
            Self::TooManyInlineRules { most } => {
                write!(f, "rule: {most} texts are in use already, and no more may be")
            }
            Self::Invalid(why) => f.write_str(why),
            Self::NotConfigured => f.write_str("no rate limit configuration loaded"),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AskError {}

impl From<EngineError> for AskError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Invalid(error) => error.into(),
            error => Self::Engine(error),
        }
    }
}

impl From<RuleError> for AskError {
    fn from(error: RuleError) -> Self {
        Self::Invalid(error.to_string())
    }
}
