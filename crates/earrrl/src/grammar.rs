//! The rule grammar: one line of text to a limit and back.
//!
//! ```text
//! recent-average 1/s half-life=10s [strict|leaky]     (or period=60s)
//! exponential 60/1m [leaky|strict]
//! token-bucket 60 refill=1/s                          (also: credit-pool)
//! gcra 1/s burst=60
//! fixed-window 60/1m [leaky|strict]
//! sliding-log 60/1m [leaky|strict]
//! sliding-window 600/1h sub-windows=60 [harsh|lenient] [leaky|strict]
//! sliding-counter 60/1m [leaky|strict]
//! ```

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::algorithm::recent_average::Averaging;
use crate::algorithm::sliding_window::Edge;
use crate::algorithm::{
    Exponential, FixedWindow, Limit, Policy, RecentAverage, SlidingCounter, SlidingLog,
    SlidingWindow, TokenBucket,
};
use crate::cost::Cost;
use crate::duration;
use crate::error::RuleError;
use crate::parameter::Rate;

/// A rule's text is at most so many bytes.
const LONGEST: usize = 512;

const NAMES: &str = "recent-average, exponential, token-bucket, credit-pool, gcra, fixed-window, \
                     sliding-log, sliding-window or sliding-counter";

/// Reads a rule. The whole line is one limit; nothing may be left over.
pub(crate) fn read(text: &str) -> Result<Limit, RuleError> {
    if text.len() > LONGEST {
        let problem = format!("the rule is {} bytes long; at most {LONGEST}", text.len());
        return Err(RuleError::new(problem));
    }
    let mut words = Words::new(text);
    let name = words.next(&format!("expected {NAMES}"))?;
    let limit = match name.text {
        "recent-average" => recent_average(&mut words)?,
        "exponential" => exponential(&mut words)?,
        "token-bucket" | "credit-pool" => token_bucket(&mut words)?,
        "gcra" => gcra(&mut words)?,
        "fixed-window" => fixed_window(&mut words)?,
        "sliding-log" => sliding_log(&mut words)?,
        "sliding-window" => sliding_window(&mut words)?,
        "sliding-counter" => sliding_counter(&mut words)?,
        _ => {
            return Err(
                name.error(format!("unknown algorithm {}; expected {NAMES}", name.quoted()))
            );
        }
    };
    words.finish()?;
    Ok(limit)
}

fn recent_average(words: &mut Words<'_>) -> Result<Limit, RuleError> {
    let rate = words.next("expected a rate such as 1/s")?;
    let rate_value = read_rate(&rate)?;
    let (half_life, period) = (words.option("half-life")?, words.option("period")?);
    let limit = match (half_life, period) {
        (Some(word), None) => RecentAverage::with_half_life(rate_value, read_duration(&word)?)
            .map_err(|error| error.at(word.column))?,
        (None, Some(word)) => RecentAverage::with_period(rate_value, read_duration(&word)?)
            .map_err(|error| error.at(word.column))?,
        (None, None) => return Err(words.missing("half-life=10s or period=10s")),
        (Some(_), Some(word)) => {
            return Err(word.error("expected either half-life or period, not both".into()));
        }
    };
    Ok(limit.with_policy(words.policy(Policy::Strict)?).into())
}

fn exponential(words: &mut Words<'_>) -> Result<Limit, RuleError> {
    let (word, quota, period) = words.quota()?;
    let limit = Exponential::new(quota, period).map_err(|error| error.at(word.column))?;
    Ok(limit.with_policy(words.policy(Policy::Leaky)?).into())
}

fn token_bucket(words: &mut Words<'_>) -> Result<Limit, RuleError> {
    let capacity = words.next("expected a capacity such as 60")?;
    let refill = words.option("refill")?.ok_or_else(|| words.missing("refill=1/s"))?;
    bucket(words, &capacity, &refill)
}

fn gcra(words: &mut Words<'_>) -> Result<Limit, RuleError> {
    let rate = words.next("expected a rate such as 1/s")?;
    let burst = words.option("burst")?.ok_or_else(|| words.missing("burst=60"))?;
    bucket(words, &burst, &rate)
}

fn bucket(words: &mut Words<'_>, capacity: &Word<'_>, rate: &Word<'_>) -> Result<Limit, RuleError> {
    let refill = read_rate(rate)?;
    let limit = TokenBucket::new(read_cost(capacity)?, refill);
    let limit = limit.map_err(|error| error.at(capacity.column))?;
    if let Some(strict) = words.flag(&["strict", "leaky"])?.filter(|word| word.text == "strict") {
        let problem = "a token bucket can't be strict: a denied request takes nothing from it";
        return Err(strict.error(problem.into()));
    }
    Ok(limit.into())
}

fn fixed_window(words: &mut Words<'_>) -> Result<Limit, RuleError> {
    let (word, quota, window) = words.quota()?;
    let limit = FixedWindow::new(quota, window).map_err(|error| error.at(word.column))?;
    Ok(limit.with_policy(words.policy(Policy::Leaky)?).into())
}

fn sliding_log(words: &mut Words<'_>) -> Result<Limit, RuleError> {
    let (word, quota, window) = words.quota()?;
    let limit = SlidingLog::new(quota, window).map_err(|error| error.at(word.column))?;
    Ok(limit.with_policy(words.policy(Policy::Leaky)?).into())
}

fn sliding_window(words: &mut Words<'_>) -> Result<Limit, RuleError> {
    let (word, quota, window) = words.quota()?;
    let mut limit = SlidingWindow::new(quota, window).map_err(|error| error.at(word.column))?;
    if let Some(word) = words.option("sub-windows")? {
        let digits = word.text.bytes().all(|byte| byte.is_ascii_digit());
        let count = word.text.parse().ok().filter(|_| digits);
        let count = count.ok_or_else(|| word.expected("a whole number from 1 to 10000"))?;
        limit = limit.with_sub_windows(count).map_err(|error| error.at(word.column))?;
    }
    let lenient = words.flag(&["harsh", "lenient"])?.is_some_and(|word| word.text == "lenient");
    let edge = if lenient { Edge::Lenient } else { Edge::Harsh };
    Ok(limit.with_edge(edge).with_policy(words.policy(Policy::Leaky)?).into())
}

fn sliding_counter(words: &mut Words<'_>) -> Result<Limit, RuleError> {
    let (word, quota, window) = words.quota()?;
    let limit = SlidingCounter::new(quota, window).map_err(|error| error.at(word.column))?;
    Ok(limit.with_policy(words.policy(Policy::Leaky)?).into())
}

fn read_cost(word: &Word<'_>) -> Result<Cost, RuleError> {
    word.text.parse().map_err(|error: RuleError| error.at(word.column))
}

pub(crate) fn read_duration(word: &Word<'_>) -> Result<Duration, RuleError> {
    duration::parse_duration(word.text).map_err(|error| error.at(word.column))
}

/// `N/D`: the amount, and a unit or a duration.
fn read_quotient(word: &Word<'_>) -> Result<(Cost, Duration), RuleError> {
    let (amount, per) = word.split('/').ok_or_else(|| word.expected("N/D, such as 60/1m"))?;
    let time = match duration::parse_unit(per.text) {
        Some(nanos) => Duration::from_nanos(nanos),
        None => read_duration(&per)?,
    };
    Ok((read_cost(&amount)?, time))
}

pub(crate) fn read_rate(word: &Word<'_>) -> Result<Rate, RuleError> {
    let (amount, per) = read_quotient(word)?;
    Rate::new(amount, per).map_err(|error| error.at(word.column))
}

/// A word of the rule's text, and the column it starts at.
#[derive(Clone, Copy)]
pub(crate) struct Word<'a> {
    pub(crate) text: &'a str,
    pub(crate) column: usize,
}

impl<'a> Word<'a> {
    pub(crate) fn error(&self, message: String) -> RuleError {
        RuleError::new(message).at(self.column)
    }

    pub(crate) fn expected(&self, what: &str) -> RuleError {
        self.error(format!("{} is not {what}", self.quoted()))
    }

    /// The word for a message: short, and with nothing that a terminal would act on.
    pub(crate) fn quoted(&self) -> String {
        let shown: String = self.text.chars().take(40).flat_map(char::escape_debug).collect();
        format!("`{shown}`")
    }

    fn split(&self, at: char) -> Option<(Word<'a>, Word<'a>)> {
        let (left, right) = self.text.split_once(at)?;
        let column = self.column + left.chars().count() + 1;
        Some((Word { text: left, ..*self }, Word { text: right, column }))
    }
}

/// The words not yet used. Options come in any order, once each.
pub(crate) struct Words<'a> {
    words: Vec<Word<'a>>,
    used: Vec<&'a str>,
    end: usize,
}

impl<'a> Words<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let mut words = Vec::new();
        let mut rest = text;
        while !rest.trim_start().is_empty() {
            let start = rest.trim_start();
            let word = start.split_whitespace().next().unwrap_or(start);
            let column = text[..text.len() - start.len()].chars().count() + 1;
            words.push(Word { text: word, column });
            rest = &start[word.len()..];
        }
        Self { words, used: Vec::new(), end: text.trim_end().chars().count() + 1 }
    }

    /// The next word by place.
    pub(crate) fn next(&mut self, expected: &str) -> Result<Word<'a>, RuleError> {
        if self.words.is_empty() {
            return Err(RuleError::new(expected.into()).at(self.end));
        }
        Ok(self.words.remove(0))
    }

    /// What is missing, at the option that may have been meant for it, or at the end.
    fn missing(&self, what: &str) -> RuleError {
        match self.words.iter().find(|word| word.text.contains('=')) {
            Some(word) => word.error(format!("expected {what}, got {}", word.quoted())),
            None => RuleError::new(format!("expected {what}")).at(self.end),
        }
    }

    /// `Q/W` by place.
    fn quota(&mut self) -> Result<(Word<'a>, Cost, Duration), RuleError> {
        let word = self.next("expected a quota and a window such as 60/1m")?;
        let (quota, window) = read_quotient(&word)?;
        Ok((word, quota, window))
    }

    /// The value of `name=value`, where it is given.
    pub(crate) fn option(&mut self, name: &'static str) -> Result<Option<Word<'a>>, RuleError> {
        self.used.push(name);
        let is_it = |word: &Word<'a>| word.split('=').is_some_and(|(key, _)| key.text == name);
        let Some(place) = self.words.iter().position(is_it) else { return Ok(None) };
        let value = self.words.remove(place).split('=').map(|(_, value)| value);
        match self.words.iter().find(|word| is_it(word)) {
            Some(again) => Err(again.error(format!("`{name}` is given twice"))),
            None => Ok(value),
        }
    }

    /// One of several bare words, where one is given.
    pub(crate) fn flag(&mut self, names: &[&'static str]) -> Result<Option<Word<'a>>, RuleError> {
        self.used.extend(names);
        let is_it = |word: &Word<'a>| names.contains(&word.text);
        let Some(place) = self.words.iter().position(is_it) else { return Ok(None) };
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

    fn policy(&mut self, default: Policy) -> Result<Policy, RuleError> {
        Ok(match self.flag(&["strict", "leaky"])?.map(|word| word.text) {
            Some("strict") => Policy::Strict,
            Some(_) => Policy::Leaky,
            None => default,
        })
    }

    /// Nothing may be left over.
    pub(crate) fn finish(self) -> Result<(), RuleError> {
        match self.words.first() {
            Some(word) => {
                let known = self.used.join(", ");
                Err(word.error(format!("unexpected {}; known here: {known}", word.quoted())))
            }
            None => Ok(()),
        }
    }
}

/// A limit's text, every option spelled out.
pub(crate) fn write(limit: &Limit) -> String {
    let policy = match limit.policy() {
        Policy::Strict => "strict",
        Policy::Leaky => "leaky",
    };
    match limit {
        Limit::RecentAverage(limit) => {
            let (name, nanos) = match limit.averaging() {
                Averaging::HalfLife(nanos) => ("half-life", nanos),
                Averaging::Period(nanos) => ("period", nanos),
            };
            format!("recent-average {} {name}={} {policy}", limit.rate(), duration::Text(nanos))
        }
        Limit::Exponential(limit) => {
            format!("exponential {}/{} {policy}", limit.quota(), duration::Text(limit.period()))
        }
        Limit::TokenBucket(limit) => {
            format!("token-bucket {} refill={}", limit.capacity(), limit.refill())
        }
        Limit::FixedWindow(limit) => {
            format!("fixed-window {}/{} {policy}", limit.quota(), duration::Text(limit.window()))
        }
        Limit::SlidingLog(limit) => {
            format!("sliding-log {}/{} {policy}", limit.quota(), duration::Text(limit.window()))
        }
        Limit::SlidingWindow(limit) => {
            let edge = match limit.edge() {
                Edge::Harsh => "harsh",
                Edge::Lenient => "lenient",
            };
            let (quota, window) = (limit.quota(), duration::Text(limit.window()));
            format!(
                "sliding-window {quota}/{window} sub-windows={} {edge} {policy}",
                limit.sub_windows()
            )
        }
        Limit::SlidingCounter(limit) => {
            format!("sliding-counter {}/{} {policy}", limit.quota(), duration::Text(limit.window()))
        }
    }
}
