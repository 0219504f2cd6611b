//! The one error of rules and costs: what was wrong, where, and what would be right.

use alloc::string::String;
use core::fmt;

/// A rule, a cost or a parameter that can't be. One line, made to be shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    column: Option<usize>,
    message: String,
}

impl RuleError {
    /// An error of an engine's own: what was wrong, and what would be right, on one line.
    pub fn new(message: String) -> Self {
        Self { column: None, message }
    }

    /// The same error, at a column (counted from 1, in characters) of the rule's text.
    pub(crate) fn at(self, column: usize) -> Self {
        Self { column: Some(self.column.unwrap_or(column)), ..self }
    }

    /// The same error, of the named field.
    pub fn of(self, field: &str) -> Self {
        Self { message: alloc::format!("{field}: {}", self.message), ..self }
    }

    /// Where in the rule's text it stands: characters, counted from 1.
    pub fn column(&self) -> Option<usize> {
        self.column
    }

    /// What was wrong, and what would be right, without the column.
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
