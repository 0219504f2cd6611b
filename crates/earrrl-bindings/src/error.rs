//! The errors of the packages, which each of them turns into exceptions of its language.

use std::fmt;

use earrrl::{BuildError, EngineError, RuleError};
use earrrl_tower::LayerError;

/// An error in the settings or the arguments of a package.
#[derive(Debug)]
pub enum Error {
    /// A value is wrong. The text names the setting, the value and what would be right.
    Invalid(String),
    /// Neither a rule nor a plan has this name.
    UnknownName(String),
    /// An engine or a limiter could not be built.
    Build(BuildError),
    /// The engine refused a rule or a decision.
    Engine(EngineError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text) => f.write_str(text),
            Self::UnknownName(name) => write!(f, "neither a rule nor a plan is called {name:?}"),
            Self::Build(error) => error.fmt(f),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<RuleError> for Error {
    fn from(error: RuleError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<String> for Error {
    fn from(text: String) -> Self {
        Self::Invalid(text)
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<LayerError> for Error {
    fn from(error: LayerError) -> Self {
        match error {
            LayerError::Engine(error) => Self::Engine(error),
            LayerError::UnknownName(name) => Self::UnknownName(name),
            error => Self::Invalid(error.to_string()),
        }
    }
}
