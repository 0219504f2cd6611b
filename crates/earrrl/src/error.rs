//! The error type of rules and costs, which names the problem, its position and a correct value.

use alloc::string::String;
use core::fmt;

/// An invalid rule, cost or parameter. Its message is one line that can be shown to users.
///
/// ```
/// use earrrl::{Rule, RuleErrorKind};
/// let error = "gcra 1/s burst=many".parse::<Rule>().unwrap_err();
/// assert_eq!((error.kind(), error.column()), (RuleErrorKind::Syntax, Some(16)));
/// assert_eq!(error.to_string(), "column 16: `many` is not a decimal number from 0 to 1e18");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RuleError {
    kind: RuleErrorKind,
    column: Option<usize>,
    message: String,
}

/// The kind of a [`RuleError`], for programs that handle kinds differently.
///
/// ```
/// use earrrl::{Cost, Rule, RuleErrorKind};
///
/// let rule = "gcra 1/s burst=9".parse::<Rule>()?.with_max_cost(Cost::from_units(5))?;
/// let refused = rule.accept(Cost::from_units(6)).unwrap_err();
/// assert_eq!(refused.kind(), RuleErrorKind::Cost);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RuleErrorKind {
    /// A text is not a valid rule, cost or duration.
    Syntax,
    /// A parameter is out of its bounds, or two parameters contradict each other.
    OutOfRange,
    /// A request costs more than the rule's `max_cost`.
    Cost,
    /// A rule's name is invalid.
    Name,
    /// This engine or algorithm does not support the request.
    Unsupported,
}

impl RuleError {
    /// Returns an [`Unsupported`](RuleErrorKind::Unsupported) error. The message should say on one
    /// line what the engine does not support and what it does.
    ///
    /// ```
    /// # use earrrl::{RuleError, RuleErrorKind};
    /// let error = RuleError::new("this engine has no reservations".to_owned());
    /// assert_eq!(error.kind(), RuleErrorKind::Unsupported);
    /// ```
    pub fn new(message: String) -> Self {
        Self::of_kind(RuleErrorKind::Unsupported, message)
    }

    pub(crate) fn of_kind(kind: RuleErrorKind, message: String) -> Self {
        Self {
            kind,
            column: None,
            message,
        }
    }

    pub(crate) fn syntax(message: String) -> Self {
        Self::of_kind(RuleErrorKind::Syntax, message)
    }

    pub(crate) fn out_of_range(message: String) -> Self {
        Self::of_kind(RuleErrorKind::OutOfRange, message)
    }

    /// Sets the column in the rule's text (in characters, counted from 1), unless the error has one
    /// already.
    #[doc(hidden)]
    pub fn at(self, column: usize) -> Self {
        Self {
            column: Some(self.column.unwrap_or(column)),
            ..self
        }
    }

    /// Prefixes the message with the name of the invalid field.
    ///
    /// ```
    /// # use earrrl::RuleError;
    /// let error = RuleError::new("near is not for exponential".to_owned()).of("consistency");
    /// assert_eq!(error.to_string(), "consistency: near is not for exponential");
    /// ```
    pub fn of(self, field: &str) -> Self {
        Self {
            message: alloc::format!("{field}: {}", self.message),
            ..self
        }
    }

    /// Returns the kind of the error.
    ///
    /// ```
    /// # use earrrl::{Rule, RuleErrorKind};
    /// let error = "gcra 1/s burst=0".parse::<Rule>().unwrap_err();
    /// assert_eq!(error.kind(), RuleErrorKind::OutOfRange);
    /// ```
    pub fn kind(&self) -> RuleErrorKind {
        self.kind
    }

    /// Returns the column of the error in the rule's text: characters, counted from 1.
    ///
    /// ```
    /// # use earrrl::Rule;
    /// let error = "gcra 1/s burst=many".parse::<Rule>().unwrap_err();
    /// assert_eq!(error.column(), Some(16));
    /// ```
    pub fn column(&self) -> Option<usize> {
        self.column
    }

    /// Returns the problem and what would be right, without the column.
    ///
    /// ```
    /// # use earrrl::Rule;
    /// let error = "gcra 1/s burst=many".parse::<Rule>().unwrap_err();
    /// assert_eq!(error.message(), "`many` is not a decimal number from 0 to 1e18");
    /// ```
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

/// Writes the message, since `main` prints the `Debug` form of the error that it returns.
///
/// ```
/// let error = "gcra 5/s brust=5".parse::<earrrl::Rule>().unwrap_err();
/// assert_eq!(format!("{error:?}"), error.to_string());
/// ```
impl fmt::Debug for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for RuleError {}
