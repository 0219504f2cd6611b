//! The one error of rules and costs: what was wrong, where, and what would be right.

use alloc::string::String;
use core::fmt;

/// An invalid rule, cost or parameter. One line, made to be shown to people.
///
/// ```
/// use earrrl::{Rule, RuleErrorKind};
/// let error = "gcra 1/s burst=many".parse::<Rule>().unwrap_err();
/// assert_eq!((error.kind(), error.column()), (RuleErrorKind::Syntax, Some(16)));
/// assert_eq!(error.to_string(), "column 16: `many` is not a decimal number ≥ 0");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    kind: RuleErrorKind,
    column: Option<usize>,
    message: String,
}

/// The kind of an error, for programs that tell one from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RuleErrorKind {
    /// A text that is no rule, cost or duration.
    Syntax,
    /// A parameter outside of its bounds, or two that do not go together.
    OutOfRange,
    /// A request that costs more than the rule's `max_cost`.
    Cost,
    /// An invalid name of a rule.
    Name,
    /// Something that this engine or algorithm can't do.
    Unsupported,
}

impl RuleError {
    /// Returns an error of an engine's own: what it can't do, and what would be right, on one line.
    pub fn new(message: String) -> Self {
        Self::of_kind(RuleErrorKind::Unsupported, message)
    }

    pub(crate) fn of_kind(kind: RuleErrorKind, message: String) -> Self {
        Self { kind, column: None, message }
    }

    pub(crate) fn syntax(message: String) -> Self {
        Self::of_kind(RuleErrorKind::Syntax, message)
    }

    pub(crate) fn out_of_range(message: String) -> Self {
        Self::of_kind(RuleErrorKind::OutOfRange, message)
    }

    /// Returns the same error, at a column (counted from 1, in characters) of the rule's text.
    pub(crate) fn at(self, column: usize) -> Self {
        Self { column: Some(self.column.unwrap_or(column)), ..self }
    }

    /// Returns the same error, of the named field.
    pub fn of(self, field: &str) -> Self {
        Self { message: alloc::format!("{field}: {}", self.message), ..self }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> RuleErrorKind {
        self.kind
    }

    /// Returns the column of the error in the rule's text: characters, counted from 1.
    pub fn column(&self) -> Option<usize> {
        self.column
    }

    /// Returns the problem and what would be right, without the column.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.column {
            Some(column) => write!(f, "column {column}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl core::error::Error for RuleError {}
