//! Mistakes in a configuration: each has a place, the wrong value, and what would be right.

use std::fmt;
use std::ops::Range;

use toml::Spanned;

use super::suggest::{did_you_mean, removed};

/// The largest number of characters of a wrong value that an error shows.
pub(super) const LONGEST_SHOWN: usize = 80;

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
        Self {
            name: name.to_owned(),
            problems: vec![ConfigProblem::at(text, place, message)],
        }
    }

    /// Creates the error for a syntax error that the TOML parser reported.
    pub(super) fn syntax(name: &str, text: &str, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or_default();
        let message = error.message().trim().replace('\n', "; ");
        let message = match (removed(&message), did_you_mean(&message)) {
            (Some(hint), _) => hint,
            (None, Some(suggestion)) => format!("{message}; did you mean `{suggestion}`?"),
            (None, None) => misspelt_rule(text, &span)
                .or_else(|| wrong_type(text, &span, &message))
                .unwrap_or(message),
        };
        let problem = ConfigProblem::at(text, span, message);
        Self {
            name: name.to_owned(),
            problems: vec![problem],
        }
    }
}

/// Returns the text from the start of a span to the end of its line.
fn line_at<'t>(text: &'t str, span: &Range<usize>) -> &'t str {
    let line = text.get(span.start..).and_then(|rest| rest.lines().next());
    line.unwrap_or_default().trim_end()
}

/// Returns an error if the span is `[rule]` or `[[rules]]`, which are misspellings of `[[rule]]`.
fn misspelt_rule(text: &str, span: &Range<usize>) -> Option<String> {
    match line_at(text, span) {
        "[rule]" => {
            Some("rule: expected [[rule]], in two brackets each: there may be several".to_owned())
        }
        "[rules]" | "[[rules]]" => {
            Some("rules: expected [[rule]], without s: each such table is one rule".to_owned())
        }
        _ => None,
    }
}

/// Returns an error about the number of brackets if the span is a header such as `[[server]]`, of a table
/// that exists once, or `[server.token]`, of one that may exist several times.
fn brackets(text: &str, span: &Range<usize>) -> Option<String> {
    // The span begins at the brackets, or at the name in them.
    let before = text.get(..span.start)?.rsplit('\n').next()?;
    let line = line_at(text, &(span.start - before.len()..span.end))
        .split('#')
        .next()?
        .trim();
    if !before.trim_matches([' ', '[']).is_empty() || !line.starts_with('[') {
        return None;
    }
    if line.trim_matches(['[', ']']) == "rule.override" {
        return Some("rule.override: expected [[rule.override]] below its [[rule]]".to_owned());
    }
    if let Some(name) = line
        .strip_prefix("[[")
        .and_then(|line| line.strip_suffix("]]"))
    {
        return Some(format!(
            "{name}: expected [{name}], in one bracket each: there is one of it"
        ));
    }
    let name = line.strip_prefix('[')?.strip_suffix(']')?;
    Some(format!(
        "{name}: expected [[{name}]], in two brackets each: there may be several"
    ))
}

/// Returns the name of the field whose value is at the span; `None` if no name is on the same line.
fn field_at<'t>(text: &'t str, span: &Range<usize>) -> Option<&'t str> {
    let line = text.get(..span.start)?.rsplit('\n').next()?;
    let nearest = line.trim_end().strip_suffix('=');
    let nearest = nearest.map(|before| before.rsplit(['{', ',', '[']).next().unwrap_or(before));
    nearest
        .or(line.split_once('=').map(|(field, _)| field))
        .map(str::trim)
}

/// Rewrites serde's message `invalid type: GOT, expected EXPECTED`, or one that has only the expectation,
/// so that it names the field and the value.
fn wrong_type(text: &str, span: &Range<usize>, message: &str) -> Option<String> {
    let value = text.get(span.clone()).unwrap_or_default();
    let (got, expected) = match message.strip_prefix("expected ") {
        Some(expected) if !value.is_empty() => (value, expected),
        Some(_) => return None,
        None => {
            let kinds = ["invalid type: ", "invalid value: ", "invalid length "];
            let mismatch = kinds
                .into_iter()
                .find_map(|kind| message.strip_prefix(kind))?;
            mismatch.rsplit_once(", expected ")?
        }
    };
    if let Some(brackets) = brackets(text, span) {
        return Some(brackets);
    }
    let got = match got {
        date if date.contains("datetime") => "a date",
        length if message.starts_with("invalid length") => value_or(value, length),
        other => other.strip_suffix(" as i128").unwrap_or(other),
    };
    let expected = match expected {
        "u64" | "u32" | "usize" => "a whole number, 0 or more",
        "a boolean" => "true or false",
        "a map" => "a table",
        "a sequence" => "a list",
        "a spanned value" => "another value",
        other => other,
    };
    let field = field_at(text, span).unwrap_or_default();
    let separator = if field.is_empty() { "" } else { ": " };
    if is_secret(field) {
        return Some(format!(
            "{field}: expected {expected}, got a value of another type"
        ));
    }
    let got: String = got.chars().take(LONGEST_SHOWN).collect();
    Some(format!("{field}{separator}expected {expected}, got {got}"))
}

/// Returns true if a field's value must be in no message, not even if it has the wrong type.
fn is_secret(field: &str) -> bool {
    ["token", "password", "hmac_key"]
        .iter()
        .any(|word| field.contains(word))
}

/// Returns a value, or another text if the value is not known.
fn value_or<'t>(value: &'t str, other: &'t str) -> &'t str {
    if value.is_empty() { other } else { value }
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

    /// Adds the problem that the text of a field is not what was expected.
    pub(super) fn expected(
        &mut self,
        name: &str,
        field: &Spanned<String>,
        want: impl fmt::Display,
    ) {
        let shown: String = field.get_ref().chars().take(LONGEST_SHOWN).collect();
        self.add(
            field.span(),
            format!("{name}: `{}`: expected {want}", shown.escape_debug()),
        );
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_error(mut self, name: &str, text: &str) -> ConfigError {
        self.0.sort_by_key(|(span, _)| span.start);
        let at = |(span, message)| ConfigProblem::at(text, span, message);
        ConfigError {
            name: name.to_owned(),
            problems: self.0.into_iter().map(at).collect(),
        }
    }
}
