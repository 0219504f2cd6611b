//! The errors of requests that could not be decided.

use std::fmt;

use earrrl::{EngineError, RuleError};

/// The reason why a request could not be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskError {
    /// No rule has this name, which the request contains.
    UnknownRule(Box<str>),
    /// The request contains a rule as text, which this server does not allow.
    InlineRulesOff,
    /// The server has accepted as many rules as text as it can.
    TooManyInlineRules {
        /// The greatest number of rules that are accepted as text.
        most: usize,
    },
    /// The request contains an invalid rule, cost, attribute or descriptor; the text describes the
    /// problem.
    Invalid(String),
    /// No descriptors are configured yet.
    NotConfigured,
    /// The engine failed to decide the request.
    Engine(EngineError),
}

/// The most characters of an unknown rule's name that an error shows.
const SHOWN: usize = 100;

impl AskError {
    /// Returns the error of a request that names an unknown rule.
    #[cold]
    pub fn unknown_rule(name: &[u8]) -> Self {
        let name = String::from_utf8_lossy(&name[..name.len().min(4 * SHOWN)]);
        Self::UnknownRule(name.chars().take(SHOWN).collect())
    }

    pub(super) fn invalid(why: impl Into<String>) -> Self {
        Self::Invalid(why.into())
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownRule(name) => {
                let name = name.escape_debug();
                write!(
                    f,
                    "rule: no rule is named `{name}`; EARRRL.RULES and GET /v1/rules list them"
                )
            }
            Self::InlineRulesOff => f.write_str(
                "rule: expected a rule's name; rule texts need the server's --allow-inline-rules",
            ),
            Self::TooManyInlineRules { most } => {
                write!(
                    f,
                    "rule: {most} texts are in use already, and no more may be"
                )
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
