//! Why a request got no answer.

use std::fmt;

use earrrl::EngineError;

/// Why a request got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The request can't be.
    Invalid(String),
    /// No configuration has been loaded.
    NotConfigured,
    /// The engine failed.
    Engine(EngineError),
}

impl Refused {
    pub(super) fn invalid(why: impl Into<String>) -> Self {
        Self::Invalid(why.into())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => f.write_str(why),
            Self::NotConfigured => f.write_str("no rate limit configuration loaded"),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl From<EngineError> for Refused {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Invalid(error) => Self::Invalid(error.to_string()),
            error => Self::Engine(error),
        }
    }
}
