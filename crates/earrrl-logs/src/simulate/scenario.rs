//! Scenarios to simulate, which come from flags, from a file or from both.
//!
//! A line of a file is `name = value`. `rule` and `client` may occur several times, and `#` starts
//! a comment.

use std::str::FromStr;
use std::time::Duration;

use earrrl::Rule;

use super::client::Client;

/// The duration of a scenario that does not set one.
const DURATION: Duration = Duration::from_secs(300);

/// Rules, and the clients that are simulated under each of them.
///
/// ```
/// use earrrl_logs::simulate::{Scenario, SimulatedOutcome};
///
/// let text = "rule = fixed-window 60/1m\nclient = alice steady 2/s\nduration = 1m";
/// let scenario: Scenario = text.parse()?;
/// let outcomes = SimulatedOutcome::of(&scenario)?;
/// assert_eq!(outcomes.len(), scenario.rules.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Scenario {
    /// The rules, each of which is tried separately.
    pub rules: Vec<Rule>,
    /// The simulated clients.
    pub clients: Vec<Client>,
    /// The simulated time; `None` for the default.
    pub duration: Option<Duration>,
    /// The seed of the clients' random numbers; `None` for the default.
    pub seed: Option<u64>,
}

impl Scenario {
    /// Returns the simulated time, or the default if none is set.
    ///
    /// ```
    /// assert_eq!(earrrl_logs::simulate::Scenario::default().duration().as_secs(), 300);
    /// ```
    pub fn duration(&self) -> Duration {
        self.duration.unwrap_or(DURATION)
    }

    /// Returns the seed of random numbers, or the default if none is set.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// Returns the scenario with the rules and clients of `other` added. The duration and seed of
    /// `other` take precedence.
    ///
    /// ```
    /// # use earrrl_logs::simulate::Scenario;
    /// let file: Scenario = "rule = gcra 1/s burst=5\nduration = 1m".parse()?;
    /// let flags: Scenario = "rule = gcra 1/s burst=9\nduration = 2m".parse()?;
    /// let both = file.with(flags);
    /// assert_eq!((both.rules.len(), both.duration().as_secs()), (2, 120));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        self.clients.extend(other.clients);
        Self {
            duration: other.duration.or(self.duration),
            seed: other.seed.or(self.seed),
            ..self
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let problem = |error: &dyn std::fmt::Display| format!("{name}: {error}");
        match name {
            "rule" => self
                .rules
                .push(value.parse().map_err(|error| problem(&error))?),
            "client" => self
                .clients
                .push(value.parse().map_err(|error| problem(&error))?),
            "duration" if self.duration.is_some() => return Err(problem(&"is there twice")),
            "duration" => {
                self.duration = Some(parse_time(value).map_err(|error| problem(&error))?);
            }
            "seed" if self.seed.is_some() => return Err(problem(&"is there twice")),
            "seed" => {
                let seed = value.parse().ok();
                let want = || format!("seed: `{value}` is not a whole number, 0 or more");
                self.seed = Some(seed.ok_or_else(want)?);
            }
            _ => return Err("expected rule, client, duration or seed, then = and a value".into()),
        }
        Ok(())
    }
}

/// Parses a duration above 0.
///
/// ```
/// # use earrrl_logs::simulate::parse_time;
/// assert_eq!(parse_time("0s").unwrap_err(), "expected a time above 0");
/// ```
///
/// # Errors
/// Returns an error without the name of the field.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let time = earrrl::internal::parse_duration(text).map_err(|error| error.to_string())?;
    if time.is_zero() {
        Err("expected a time above 0".to_owned())
    } else {
        Ok(time)
    }
}

impl FromStr for Scenario {
    type Err = String;

    /// Parses the text of a scenario file.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut scenario = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or("").trim();
            // The names of clients are written to terminals.
            if let Some(control) = line.chars().find(|one| one.is_control() && *one != '\t') {
                let shown = control.escape_debug();
                return Err(format!(
                    "line {number}: the control character {shown} is not allowed"
                ));
            }
            if line.is_empty() {
                continue;
            }
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            let set = scenario.set(name.trim(), value.trim());
            set.map_err(|error| format!("line {number}: {error}"))?;
        }
        Ok(scenario)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_what_is_wrong_with_it() {
        let text = "# who wins?\nrule = gcra 1/s burst=2\n\nclient = a steady 1/s # calm\nseed=7\n";
        let scenario: Scenario = text.parse().unwrap();
        assert_eq!((scenario.rules.len(), scenario.clients.len()), (1, 1));
        assert_eq!((scenario.seed(), scenario.duration()), (7, DURATION));
        for (text, message) in [
            ("\nrules = x", "line 2: expected rule, client"),
            ("rule = gcra", "line 1: rule: column 5"),
            ("client = a", "line 1: client: column 2"),
            ("duration = 5", "line 1: duration: `5` is not a duration"),
            ("duration = 0s", "line 1: duration: expected a time above 0"),
            (
                "duration = 5s\nduration = 6s",
                "line 2: duration: is there twice",
            ),
            ("seed = 1\nseed = 1", "line 2: seed: is there twice"),
            ("seed = -1", "line 1: seed: `-1` is not a whole number"),
            (
                "client = \u{1b}[31mx steady 5/s",
                "line 1: the control character \\u{1b}",
            ),
        ] {
            let error = text.parse::<Scenario>().unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn flags_go_before_the_file() {
        let file: Scenario = "seed = 1\nduration = 5s\nrule = gcra 1/s burst=2"
            .parse()
            .unwrap();
        let flags: Scenario = "seed = 2\nrule = fixed-window 1/1s".parse().unwrap();
        let both = file.with(flags);
        assert_eq!(
            (both.seed(), both.duration(), both.rules.len()),
            (2, Duration::from_secs(5), 2)
        );
    }
}
