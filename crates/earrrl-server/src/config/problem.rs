//! What is wrong with a configuration: where, what, and what would be right.

use std::fmt;
use std::ops::Range;

use super::suggest::did_you_mean;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// From 1; `None` when the file could not be read at all.
    pub line: Option<usize>,
    /// In characters, from 1.
    pub column: Option<usize>,
    /// What, and what would be right.
    pub message: String,
}

/// A configuration that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub name: String,
    /// Everything that was found, in the order of the file.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// A file that could not be read at all.
    pub fn unreadable(name: &str, message: String) -> Self {
        let problem = Problem { line: None, column: None, message };
        Self { name: name.to_owned(), problems: vec![problem] }
    }

    /// One mistake, at a place in the file's text.
    pub fn at(name: &str, text: &str, place: Range<usize>, message: String) -> Self {
        Self { name: name.to_owned(), problems: vec![Problem::at(text, place, message)] }
    }

    /// An error of the TOML reader, or of a field that no shape has.
    pub(super) fn syntax(name: &str, text: &str, error: &toml::de::Error) -> Self {
        let message = error.message().trim().replace('\n', "; ");
        let message = match did_you_mean(&message) {
            Some(suggestion) => format!("{message}; did you mean `{suggestion}`?"),
            None if is_single_bracket(text, error) => {
                "rule: expected [[rule]], in two brackets each: there may be several".to_owned()
            }
            None => message,
        };
        let problem = Problem::at(text, error.span().unwrap_or_default(), message);
        Self { name: name.to_owned(), problems: vec![problem] }
    }
}

/// `[rule]` for `[[rule]]`.
fn is_single_bracket(text: &str, error: &toml::de::Error) -> bool {
    let line = error.span().and_then(|span| text.get(span.start..)).unwrap_or_default();
    let first = line.lines().next().unwrap_or_default().trim();
    error.message().contains("expected a sequence")
        && first.trim_start_matches('[').starts_with("rule")
}

impl fmt::Display for ConfigError {
    /// A line for each problem: `file:line:column: message`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{}:{problem}", self.name)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)
    }
}

impl Problem {
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

/// Gathers problems, so that a file's mistakes show all at once.
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
        let at = |(span, message)| Problem::at(text, span, message);
        ConfigError { name: name.to_owned(), problems: self.0.into_iter().map(at).collect() }
    }
}
