//! Mistakes in a configuration: each has a place, the wrong value, and what would be right.

use std::fmt;
use std::ops::Range;

use super::suggest::did_you_mean;

/// The largest number of characters of a wrong value that an error shows.
const LONGEST_SHOWN: usize = 80;

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigProblem {
    /// The line of the mistake, counted from 1; `None` if the file could not be read.
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
        let problem = ConfigProblem { line: None, column: None, message };
        Self { name: name.to_owned(), problems: vec![problem] }
    }

    /// Creates an error with one mistake at a place in the text.
    pub fn at(name: &str, text: &str, place: Range<usize>, message: String) -> Self {
        Self { name: name.to_owned(), problems: vec![ConfigProblem::at(text, place, message)] }
    }

    /// Creates the error for a syntax error that the TOML parser reported.
    pub(super) fn syntax(name: &str, text: &str, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or_default();
        let message = error.message().trim().replace('\n', "; ");
        let message = match did_you_mean(&message) {
            Some(suggestion) => format!("{message}; did you mean `{suggestion}`?"),
            None if is_misspelt_rule(text, &span) => {
                "rule: expected [[rule]], in two brackets each: there may be several".to_owned()
            }
            None => wrong_type(text, &span, &message).unwrap_or(message),
        };
        let problem = ConfigProblem::at(text, span, message);
        Self { name: name.to_owned(), problems: vec![problem] }
    }
}

/// Returns the text from the start of a span to the end of its line.
fn line_at<'t>(text: &'t str, span: &Range<usize>) -> &'t str {
    let line = text.get(span.start..).and_then(|rest| rest.lines().next());
    line.unwrap_or_default().trim_end()
}

/// Returns true if the span is `[rule]` or `[[rules]]`, which are misspellings of `[[rule]]`.
fn is_misspelt_rule(text: &str, span: &Range<usize>) -> bool {
    matches!(line_at(text, span), "[rule]" | "[rules]" | "[[rules]]")
}

/// Returns an error if the span is `[[server]]` or another such table, which must have single
/// brackets.
fn doubled_table(text: &str, span: &Range<usize>) -> Option<String> {
    let name = line_at(text, span).strip_prefix("[[")?.strip_suffix("]]")?;
    Some(format!("{name}: expected [{name}], in one bracket each: there is one of it"))
}

/// Rewrites serde's message `invalid type: GOT, expected EXPECTED`, so that it names the field.
fn wrong_type(text: &str, span: &Range<usize>, message: &str) -> Option<String> {
    let mismatch = message.strip_prefix("invalid type: ");
    let mismatch = mismatch.or_else(|| message.strip_prefix("invalid value: "))?;
    if let Some(table) = doubled_table(text, span) {
        return Some(table);
    }
    let (got, expected) = mismatch.rsplit_once(", expected ")?;
    let expected = match expected {
        "u64" | "u32" | "usize" => "a whole number, 0 or more",
        "a boolean" => "true or false",
        "a map" => "a table",
        "a sequence" => "a list",
        other => other,
    };
    let line = text.get(..span.start)?.rsplit('\n').next()?;
    let field = line.split_once('=').map_or("", |(field, _)| field.trim());
    let separator = if field.is_empty() { "" } else { ": " };
    let got: String = got.chars().take(LONGEST_SHOWN).collect();
    Some(format!("{field}{separator}expected {expected}, got {got}"))
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
        let before = text.get(..span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            line: Some(before.matches('\n').count() + 1),
            column: Some(before[line_start..].chars().count() + 1),
            message,
        }
    }
}

/// A list of mistakes, so that all mistakes of a file are reported at once.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<(Range<usize>, String)>);

impl Problems {
    pub(super) fn add(&mut self, span: Range<usize>, message: impl fmt::Display) {
        self.0.push((span, message.to_string()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_error(mut self, name: &str, text: &str) -> ConfigError {
        self.0.sort_by_key(|(span, _)| span.start);
        let at = |(span, message)| ConfigProblem::at(text, span, message);
        ConfigError { name: name.to_owned(), problems: self.0.into_iter().map(at).collect() }
    }
}
