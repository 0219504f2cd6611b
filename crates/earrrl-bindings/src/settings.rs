//! Settings that several classes of the packages have.

use std::path::PathBuf;
use std::time::Duration;

use earrrl::{Action, Cost, MemoryEngine, Mode, Rule};
use earrrl_tower::Missing;
use http::StatusCode;

use crate::error::Error;

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

    /// Returns the rule of a text with these options.
    ///
    /// # Errors
    /// Returns an error for a text that is no rule, for `concurrent`, which counts reservations, and for options that
    /// the rule cannot have.
    pub fn rule(&self, text: &str) -> Result<Rule, Error> {
        let mut rule: Rule = text.parse()?;
        rule.accept_mode(Mode::Check)?;
        if let Some(max_cost) = self.max_cost {
            rule = rule.with_max_cost(max_cost)?;
        }
        Ok(rule.with_action(self.action)?)
    }
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
/// Returns an error if the memory or the directory cannot be had.
pub fn engine(path: Option<PathBuf>, capacity: usize) -> Result<MemoryEngine, Error> {
    Ok(match path {
        Some(path) => MemoryEngine::with_state_for(capacity, path)?,
        None => MemoryEngine::new(capacity)?,
    })
}
