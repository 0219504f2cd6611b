//! Mistakes in a configuration: each has a place, the wrong value, and what would be right.

use std::fmt;
use std::ops::Range;

use earrrl::internal::nearest;

/// The largest number of characters of a wrong value that an error shows.
pub(super) const LONGEST_SHOWN: usize = 80;

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The line of the mistake, counted from 1; `None` if the mistake is not in the file's text.
    pub line: Option<usize>,
    /// The column of the mistake in characters, counted from 1.
    pub column: Option<usize>,
    /// The description of the mistake.
    pub message: String,
}

/// The error for an invalid configuration, with all of its mistakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The name of the configuration file.
    pub name: String,
    /// All mistakes, in the order of their places in the file.
    pub problems: Vec<ConfigProblem>,
}

impl ConfigError {
    /// Creates the error for a file that could not be read.
    pub fn unreadable(name: &str, message: String) -> Self {
        let problem = ConfigProblem {
            line: None,
            column: None,
            message,
        };
        Self {
            name: name.to_owned(),
            problems: vec![problem],
        }
    }

    /// Adds the name of the field that names the file, if the file could not be read.
    #[must_use]
    pub fn of(self, field: &str) -> Self {
        let is_read = self.problems.iter().any(|problem| problem.line.is_some());
        if is_read {
            self
        } else {
            Self {
                name: format!("{field}: {}", self.name),
                ..self
            }
        }
    }

    /// Creates an error with one mistake at a place in the text.
    pub fn at(name: &str, text: &str, place: Range<usize>, message: String) -> Self {
        Self::new(name, text, vec![(place, message)])
    }

    /// Creates an error with all mistakes of a text.
    pub(super) fn new(name: &str, text: &str, mut mistakes: Vec<(Range<usize>, String)>) -> Self {
        mistakes.sort_by_key(|(place, _)| place.start);
        let problem = |(place, message)| ConfigProblem::at(text, place, message);
        Self {
            name: name.to_owned(),
            problems: mistakes.into_iter().map(problem).collect(),
        }
    }

    /// Creates the error for a syntax error that the TOML parser reported.
    pub(super) fn syntax(name: &str, text: &str, error: &toml::de::Error) -> Self {
        let place = error.span().unwrap_or_default();
        let wrong = text.get(place.start..).unwrap_or_default();
        let message = match wrong.starts_with(['“', '”', '„', '‘', '’']) {
            true => {
                "expected a string without typographic quotes; write \" or ' around it".to_owned()
            }
            false => error.message().trim().replace('\n', "; "),
        };
        Self::at(name, text, place, message)
    }
}

impl fmt::Display for ConfigError {
    /// Writes a line for each mistake: `file:line:column: message`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{}:{problem}", self.name)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)
    }
}

impl ConfigProblem {
    fn at(text: &str, span: Range<usize>, message: String) -> Self {
        let Some(before) = text.get(..span.start) else {
            return Self {
                line: None,
                column: None,
                message: format!("options: {message}"),
            };
        };
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            line: Some(before.matches('\n').count() + 1),
            column: Some(before[line_start..].chars().count() + 1),
            message,
        }
    }
}

/// The fields of earlier versions, and what to use instead of each.
const REMOVED: [(&str, &str); 4] = [
    (
        "estimate",
        "callers state the cost, such as max_tokens, see docs/llm.md",
    ),
    (
        "events_file",
        "curl writes /v1/events to a file, see docs/visibility.md",
    ),
    ("otlp", "a collector reads /metrics, see docs/visibility.md"),
    (
        "suggest",
        "`earrrl suggest LOG` proposes a limit, and a rule with action = \"observe\" tries it",
    ),
];

/// Returns the error about a field that a table does not have.
pub(super) fn unknown_field(name: &str, known: &[&str]) -> String {
    if let Some((_, instead)) = REMOVED.iter().find(|(removed, _)| *removed == name) {
        return format!("{name}: removed; {instead}");
    }
    let meant = nearest(name, known.iter().copied());
    let meant = meant.map(|meant| format!("; did you mean `{meant}`?"));
    let known = known.join("`, `");
    let meant = meant.unwrap_or_default();
    format!(
        "unknown field `{}`, expected one of `{known}`{meant}",
        shown(name)
    )
}

/// Returns the beginning of a text, as an error shows it.
pub(super) fn shown(text: &str) -> String {
    text.chars()
        .take(LONGEST_SHOWN)
        .flat_map(char::escape_debug)
        .collect()
}
