//! Settings that several classes of the packages have.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use earrrl::internal::StateDirectory;
use earrrl::{Action, BuildError, Cost, ManualClock, MemoryEngine, Mode, Rule};
use earrrl_tower::Missing;
use http::StatusCode;

use crate::clock::{Clock, check_clock};
use crate::error::Error;

/// The engine of the packages, in memory or in files.
pub type Engine = MemoryEngine<Clock>;

/// The longest time for which a request may be held back.
const LONGEST_DELAY: Duration = Duration::from_secs(86_400);

/// The options of a rule beside its text.
pub struct RuleOptions {
    action: Action,
    max_cost: Option<Cost>,
}

impl RuleOptions {
    /// Reads the options: the name of an action, the longest delay in seconds, and the greatest cost of a request.
    ///
    /// # Errors
    /// Returns an error for an unknown action, and for a delay without the action `delay` or the other way round.
    pub fn new(
        action: Option<&str>,
        max_delay: Option<f64>,
        max_cost: Option<Cost>,
    ) -> Result<Self, Error> {
        let name = action.unwrap_or("deny");
        let action = match name {
            "deny" => Action::Deny,
            "shadow-ban" => Action::ShadowBan,
            "quarantine" => Action::Quarantine,
            "observe" => Action::Observe,
            "delay" => Action::Delay {
                max: longest_delay(max_delay)?,
            },
            _ => {
                let expected = "deny, shadow-ban, quarantine, delay or observe";
                return Err(format!("action: {name:?} is not {expected}").into());
            }
        };
        if max_delay.is_some() && name != "delay" {
            let problem = format!("max_delay: the action is {name}; only delay has one");
            return Err(problem.into());
        }
        Ok(Self { action, max_cost })
    }

    /// Returns the rule of a text with these options. The text may be a plain limit, as slowapi, flask-limiter and other
    /// packages write it: `5/minute` and `5 per 10 minutes` are fixed windows.
    ///
    /// # Errors
    /// Returns an error for a text that is no rule, for `concurrent`, which counts reservations, and for options that
    /// the rule cannot have.
    pub fn rule(&self, text: &str) -> Result<Rule, Error> {
        let mut rule: Rule = plain_limit(text).as_deref().unwrap_or(text).parse()?;
        rule.accept_mode(Mode::Check)?;
        if let Some(max_cost) = self.max_cost {
            rule = rule.with_max_cost(max_cost)?;
        }
        Ok(rule.with_action(self.action)?)
    }
}

/// Returns another limit for the clients of a rule, with its action and its greatest cost.
///
/// # Errors
/// Returns an error for a text that is no rule, for `concurrent`, and for a limit that cannot have the action.
pub(crate) fn limit_like(rule: &Rule, text: &str) -> Result<Rule, Error> {
    let options = RuleOptions {
        action: rule.action(),
        max_cost: Some(rule.max_cost()),
    };
    options.rule(text)
}

/// Returns the text of the rule that a plain limit means; `None` if the text is no plain limit.
fn plain_limit(text: &str) -> Option<String> {
    let (amount, time) = text.split_once('/').or_else(|| text.split_once(" per "))?;
    let amount: u64 = amount.trim().parse().ok()?;
    let time = time.trim();
    let unit_start = time.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = time.split_at(unit_start);
    let number: u64 = if number.is_empty() {
        1
    } else {
        number.parse().ok()?
    };
    let (length, unit) = match unit.trim() {
        "s" | "sec" | "second" | "seconds" => (1, 's'),
        "m" | "min" | "minute" | "minutes" => (1, 'm'),
        "h" | "hour" | "hours" => (1, 'h'),
        "d" | "day" | "days" => (1, 'd'),
        // The lengths that the package `limits` gives them.
        "month" | "months" => (30, 'd'),
        "year" | "years" => (360, 'd'),
        _ => return None,
    };
    let number = number.checked_mul(length)?;
    Some(format!("fixed-window {amount}/{number}{unit}"))
}

fn longest_delay(seconds: Option<f64>) -> Result<Duration, Error> {
    let delay = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    delay
        .filter(|delay| *delay <= LONGEST_DELAY)
        .ok_or_else(|| {
            let expected = "the action delay needs the longest delay, at most a day";
            Error::Invalid(format!("max_delay: {expected}"))
        })
}

/// Returns the treatment of requests without a key that has this name.
///
/// # Errors
/// Returns an error for an unknown name.
pub fn missing(name: &str) -> Result<Missing, Error> {
    match name {
        "share" => Ok(Missing::Shared),
        "skip" => Ok(Missing::Skip),
        _ => {
            let expected = "share, skip, or a status from 400 to 999";
            Err(format!("missing: {name:?} is not {expected}").into())
        }
    }
}

/// Returns a status of denials; `name` is the setting.
///
/// # Errors
/// Returns an error for a status that is none of an error.
pub fn status(name: &str, code: u16) -> Result<StatusCode, Error> {
    let status = StatusCode::from_u16(code).ok();
    status
        .filter(|status| status.as_u16() >= 400)
        .ok_or_else(|| format!("{name}: {code} is not a status from 400 to 999").into())
}

/// Returns an engine for so many clients of each rule, whose rules have files in a directory if there is a path.
///
/// # Errors
/// Returns an error if the memory or the directory cannot be had, and for a clock beside a path.
pub fn engine(
    path: Option<PathBuf>,
    capacity: usize,
    clock: Option<Arc<ManualClock>>,
) -> Result<Engine, Error> {
    check_clock(clock.is_some(), path.is_some())?;
    let Some(path) = path else {
        return Ok(MemoryEngine::with_clock(capacity, Clock::new(clock, None))?);
    };
    let directory = StateDirectory::open(&path).map_err(BuildError::from)?;
    let clock = Clock::new(None, Some(directory.anchor()));
    Ok(MemoryEngine::in_directory(capacity, directory, clock)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_limits_are_fixed_windows() {
        let options = RuleOptions::new(None, None, None).unwrap();
        for (text, rule) in [
            ("5/minute", "fixed-window 5/1m"),
            ("5 per 10 minutes", "fixed-window 5/10m"),
            ("100 / 2 hours", "fixed-window 100/2h"),
            ("7/month", "fixed-window 7/30d"),
            ("1/s", "fixed-window 1/1s"),
            ("gcra 1/s burst=5", "gcra 1/s burst=5"),
        ] {
            assert_eq!(options.rule(text).unwrap().to_string(), rule, "{text}");
        }
        for text in [
            "",
            "5",
            "5/",
            "/minute",
            "5/fortnight",
            "-1/minute",
            "5/0s",
            "0/minute",
        ] {
            assert!(options.rule(text).is_err(), "{text}");
        }
        let huge = format!("5/{}years", u64::MAX);
        assert!(options.rule(&huge).is_err());
    }
}
