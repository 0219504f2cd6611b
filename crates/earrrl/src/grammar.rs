//! The grammar of rules: parses one line of text.
//!
//! ```text
//! recent-average 1/s half-life=10s [strict|leaky] [waits=queue|first]     (or period=60s)
//! exponential 60/1m [leaky|strict] [waits=queue|first]
//! token-bucket 60 refill=1/s                          (also: credit-pool)
//! gcra 1/s burst=60
//! fixed-window 60/1m [start=first] [leaky|strict]
//! fixed-window 10000/month from=15 tz=Europe/Berlin   (also: day, week, year)
//! sliding-log 60/1m [leaky|strict]
//! sliding-window 600/1h sub-windows=60 [harsh|lenient] [leaky|strict]
//! sliding-counter 60/1m [leaky|strict]
//! ```
#![allow(
    clippy::missing_errors_doc,
    reason = "each error names the column and what would be right"
)]

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::cost::Cost;
use crate::duration;
use crate::error::RuleError;
use crate::nearest::nearest;
use crate::parameter::Rate;
use crate::policy::{Policy, Waits};

/// The longest accepted text of a rule, in bytes.
pub(crate) const LONGEST: usize = 512;
/// The error about a queue under a limit that has none.
const NO_QUEUE: &str = "`waits` is for strict recent-average and strict exponential; leave it out: \
                        other limits tell the first possible time";

/// Returns `; did you mean …?` if a known name is similar to the wrong one, or an empty string.
pub(crate) fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(wrong, known).map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

/// A word of the rule's text, and the column at which it starts.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a> {
    /// The word.
    pub text: &'a str,
    /// The column of its first character, counted from 1.
    pub column: usize,
}

impl<'a> Word<'a> {
    pub(crate) fn cost(&self) -> Result<Cost, RuleError> {
        self.text
            .parse()
            .map_err(|error: RuleError| error.at(self.column))
    }

    /// Parses a duration such as `30s`.
    pub fn duration(&self) -> Result<Duration, RuleError> {
        duration::parse_duration(self.text).map_err(|error| error.at(self.column))
    }

    fn quotient_words(&self) -> Result<(Word<'a>, Word<'a>), RuleError> {
        self.split('/')
            .ok_or_else(|| self.expected("N/D, such as 60/1m"))
    }

    /// Parses `N/D`, in which D is a unit or a duration. Returns the amount and the time.
    fn quotient(&self) -> Result<(Cost, Duration), RuleError> {
        let (amount, per) = self.quotient_words()?;
        let time = per.time()?;
        Ok((amount.cost()?, time))
    }

    /// Parses a unit or a duration.
    pub(crate) fn time(&self) -> Result<Duration, RuleError> {
        match duration::parse_unit(self.text) {
            Some(nanos) => Ok(Duration::from_nanos(nanos)),
            None if self.text.chars().all(char::is_alphabetic) => Err(self.unknown_unit()),
            None => self.duration(),
        }
    }

    fn unknown_unit(&self) -> RuleError {
        // One letter is similar to every other letter.
        let known = duration::UNIT_NAMES
            .into_iter()
            .filter(|_| self.text.chars().count() > 1);
        let meant = match self.text {
            "week" | "weeks" => String::from("; 7 days are `7d`, and fixed-window takes `week`"),
            "month" | "months" => {
                String::from("; 30 days are `30d`, and fixed-window takes `month`")
            }
            "year" | "years" => {
                String::from("; 365 days are `365d`, and fixed-window takes `year`")
            }
            other => did_you_mean(other, known),
        };
        self.expected(&format!("a unit such as s, m, h, d{meant}"))
    }

    /// Parses a rate such as `10/s`.
    pub fn rate(&self) -> Result<Rate, RuleError> {
        let (amount, per) = self.quotient()?;
        Rate::new(amount, per).map_err(|error| error.at(self.column))
    }

    /// Returns an error that points at the word.
    pub fn error(&self, message: String) -> RuleError {
        RuleError::syntax(message).at(self.column)
    }

    /// Returns the error that the word is not `what`.
    pub fn expected(&self, what: &str) -> RuleError {
        self.error(format!("{} is not {what}", self.quoted()))
    }

    /// Returns the word for an error message, shortened and with control characters escaped.
    pub fn quoted(&self) -> String {
        let shown: String = self
            .text
            .chars()
            .take(40)
            .flat_map(char::escape_debug)
            .collect();
        format!("`{shown}`")
    }

    fn split(&self, at: char) -> Option<(Word<'a>, Word<'a>)> {
        let (left, right) = self.text.split_once(at)?;
        let column = self.column + left.chars().count() + 1;
        Some((
            Word {
                text: left,
                ..*self
            },
            Word {
                text: right,
                column,
            },
        ))
    }
}

/// The words of a rule's text that are not yet parsed. Options may come in any order, each at most
/// once.
#[derive(Debug)]
pub struct RuleWords<'a> {
    words: Vec<Word<'a>>,
    used: Vec<&'a str>,
    end: usize,
}

impl<'a> RuleWords<'a> {
    /// Splits a text into its words.
    pub fn new(text: &'a str) -> Self {
        let mut words = Vec::new();
        let mut rest = text;
        while !rest.trim_start().is_empty() {
            let start = rest.trim_start();
            let word = start.split_whitespace().next().unwrap_or(start);
            let column = text[..text.len() - start.len()].chars().count() + 1;
            words.push(Word { text: word, column });
            rest = &start[word.len()..];
        }
        Self {
            words,
            used: Vec::new(),
            end: text.trim_end().chars().count() + 1,
        }
    }

    /// Removes and returns the first word that is left.
    pub fn next(&mut self, expected: &str) -> Result<Word<'a>, RuleError> {
        if self.words.is_empty() {
            return Err(RuleError::syntax(expected.into()).at(self.end));
        }
        Ok(self.words.remove(0))
    }

    /// Returns an error about a missing option; `example` is a rule that has it. The error points at
    /// the first unused `name=value`, which may be the misspelt option, or at the end of the text.
    pub(crate) fn missing(&self, what: &str, example: &str) -> RuleError {
        let Some((name, word)) = self
            .words
            .iter()
            .find_map(|word| Some((word.split('=')?.0, word)))
        else {
            let problem = format!("expected {what}, as in `{example}`");
            return RuleError::syntax(problem).at(self.end);
        };
        let names = self.used.join("` or `");
        let expected = match nearest(name.text, self.used.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`, as in `{example}`?"),
            None => format!("expected `{names}`, as in `{example}`"),
        };
        word.error(format!("unknown parameter {}; {expected}", name.quoted()))
    }

    /// Parses the first word that is left as a quota and a window, `Q/W`.
    pub(crate) fn quota(&mut self) -> Result<(Word<'a>, Cost, Duration), RuleError> {
        let (word, quota, window) = self.quota_per()?;
        Ok((word, quota, window.time()?))
    }

    /// Parses the first word that is left as a quota and a word for the time after it.
    pub(crate) fn quota_per(&mut self) -> Result<(Word<'a>, Cost, Word<'a>), RuleError> {
        let word = self.next("expected a quota and a window such as 60/1m")?;
        let (amount, per) = word.quotient_words()?;
        Ok((word, amount.cost()?, per))
    }

    /// Removes the word `name=value` and returns its value; `None` if there is no such word.
    pub fn option(&mut self, name: &'static str) -> Result<Option<Word<'a>>, RuleError> {
        self.used.push(name);
        let is_it = |word: &Word<'a>| word.split('=').is_some_and(|(key, _)| key.text == name);
        let Some(place) = self.words.iter().position(is_it) else {
            return Ok(None);
        };
        let value = self.words.remove(place).split('=').map(|(_, value)| value);
        match self.words.iter().find(|word| is_it(word)) {
            Some(again) => Err(again.error(format!("`{name}` is given twice"))),
            None => Ok(value),
        }
    }

    /// Removes and returns the word that is one of `names`; `None` if there is no such word.
    pub fn flag(&mut self, names: &[&'static str]) -> Result<Option<Word<'a>>, RuleError> {
        self.used.extend(names);
        let is_it = |word: &Word<'a>| names.contains(&word.text);
        let Some(place) = self.words.iter().position(is_it) else {
            return Ok(None);
        };
        let word = self.words.remove(place);
        match self.words.iter().find(|word| is_it(word)) {
            Some(again) => Err(again.error(format!(
                "{} is one too many after `{}`",
                again.quoted(),
                word.text
            ))),
            None => Ok(Some(word)),
        }
    }

    pub(crate) fn policy(&mut self, default: Policy) -> Result<Policy, RuleError> {
        Ok(
            match self.flag(&["strict", "leaky"])?.map(|word| word.text) {
                Some("strict") => Policy::Strict,
                Some(_) => Policy::Leaky,
                None => default,
            },
        )
    }

    /// Parses the option `waits` of an average. A queue is the default under strict, and needs it.
    pub(crate) fn waits(&mut self, policy: Policy) -> Result<Waits, RuleError> {
        let word = self.option("waits")?;
        match (word.map(|word| (word, word.text)), policy) {
            (None, _) | (Some((_, "queue")), Policy::Strict) => Ok(Waits::Queue),
            (Some((_, "first")), _) => Ok(Waits::First),
            (Some((word, "queue")), _) => Err(word.error(NO_QUEUE.into())),
            (Some((word, _)), _) => Err(word.expected("first or queue")),
        }
    }

    /// Returns an error if any word is left.
    pub fn finish(self) -> Result<(), RuleError> {
        match self.words.first() {
            Some(word) => {
                let (name, problem) = match word.split('=') {
                    Some((name, _)) => (name, "unknown parameter"),
                    None => (*word, "unexpected"),
                };
                let (known, name, wrong) = (self.used.join(", "), name.text, name.quoted());
                if name == "waits" {
                    return Err(word.error(NO_QUEUE.into()));
                }
                let meant = did_you_mean(name, self.used.iter().copied());
                Err(word.error(format!("{problem} {wrong}; known here: {known}{meant}")))
            }
            None => Ok(()),
        }
    }
}
