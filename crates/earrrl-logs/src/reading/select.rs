//! The requests that `--where`, `--since` and `--until` ask for, and the cost of each, as `--cost` sets it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use earrrl::Cost;

use crate::format::{Field, Record};
use crate::line::{Skip, time};

/// One value of the flag `--cost`.
///
/// ```
/// use earrrl_logs::reading::CostRule;
///
/// assert_eq!("2.5".parse(), Ok(CostRule::Fixed("2.5".parse()?)));
/// let search: CostRule = "path:/search/*=5".parse()?;
/// assert!(matches!(search, CostRule::Path { prefix: true, .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum CostRule {
    /// Every request has this cost.
    Fixed(Cost),
    /// The cost of a request is the value of this field.
    Field(Field),
    /// Requests for this path, or for paths that start with it, have this cost.
    Path {
        /// The path without the final `*`.
        path: String,
        /// True if the cost also applies to longer paths that start with `path`.
        prefix: bool,
        /// The cost of a request for the path.
        cost: Cost,
    },
}

impl FromStr for CostRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("field:") {
            return match name {
                "" => Err("expected a field's name behind `field:`".into()),
                name => Ok(Self::Field(Field::new(name))),
            };
        }
        if let Some(rule) = text.strip_prefix("path:") {
            let (path, cost) = rule
                .rsplit_once('=')
                .ok_or("expected `path:/some/path=COST` or `path:/some/*=COST`")?;
            let cost = cost.parse().map_err(|error| format!("{error}"))?;
            let (path, prefix) = path
                .strip_suffix('*')
                .map_or((path, false), |path| (path, true));
            if path.contains('*') || path.is_empty() && !prefix {
                return Err("expected a path, with a * at its end only".into());
            }
            return Ok(Self::Path {
                path: path.into(),
                prefix,
                cost,
            });
        }
        text.parse().map(Self::Fixed).map_err(|error| {
            format!("{error}; expected a cost, `field:NAME` or `path:/some/*=COST`")
        })
    }
}

/// Writes the value as `--cost` accepts it.
impl fmt::Display for CostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(cost) => cost.fmt(f),
            Self::Field(field) => write!(f, "field:{}", field.name()),
            Self::Path { path, prefix, cost } => {
                write!(f, "path:{path}{}={cost}", if *prefix { "*" } else { "" })
            }
        }
    }
}

/// All values of `--cost`. The first path that matches decides; otherwise the field, if one is set;
/// otherwise the fixed cost.
///
/// ```
/// use earrrl_logs::reading::{CostRule, Costs};
///
/// let rules = ["path:/search=5", "1"].map(str::parse::<CostRule>);
/// let costs = rules.into_iter().collect::<Result<Costs, _>>()?;
/// # let _ = costs;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Costs {
    paths: Vec<(String, bool, Cost)>,
    pub(super) field: Option<Field>,
    fixed: Option<Cost>,
}

impl FromIterator<CostRule> for Costs {
    fn from_iter<I: IntoIterator<Item = CostRule>>(rules: I) -> Self {
        let mut costs = Self::default();
        for rule in rules {
            match rule {
                CostRule::Fixed(cost) => costs.fixed = Some(cost),
                CostRule::Field(field) => costs.field = Some(field),
                CostRule::Path { path, prefix, cost } => costs.paths.push((path, prefix, cost)),
            }
        }
        costs
    }
}

impl Costs {
    /// Returns the cost of all requests that a line stands for.
    ///
    /// # Errors
    /// Returns [`Skip::Cost`] if the field is missing or its value is not a valid cost.
    #[inline]
    pub fn of(&self, record: &Record<'_>) -> Result<Cost, Skip> {
        let cost = self.of_one(record)?;
        Ok(match u128::from(record.count()) {
            1 => cost,
            count => Cost::from_billionths(cost.billionths().saturating_mul(count)),
        })
    }

    /// Returns the cost of a request. If no `--cost` applies, this is the cost field of the log's
    /// format, or 1 if the format has none.
    #[inline]
    fn of_one(&self, record: &Record<'_>) -> Result<Cost, Skip> {
        if !self.paths.is_empty()
            && let Some(path) = record.get(&Field::Path)
            && let Some(cost) = self.by_path(&path)
        {
            return Ok(cost);
        }
        if let Some(field) = &self.field {
            return record
                .get(field)
                .and_then(|text| parse(&text))
                .ok_or(Skip::Cost);
        }
        match (self.fixed, record.cost()) {
            (Some(cost), _) => Ok(cost),
            (None, Some(text)) => parse(&text).ok_or(Skip::Cost),
            (None, None) => Ok(Cost::ONE),
        }
    }

    fn by_path(&self, path: &[u8]) -> Option<Cost> {
        let fits = |(pattern, prefix, _): &&(String, bool, Cost)| {
            let pattern = pattern.as_bytes();
            if *prefix {
                path.starts_with(pattern)
            } else {
                path == pattern
            }
        };
        self.paths.iter().find(fits).map(|&(_, _, cost)| cost)
    }
}

fn parse(text: &[u8]) -> Option<Cost> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// A condition on parsed records, such as that of `--where`.
pub trait RecordCondition: fmt::Debug + Send + Sync {
    /// Returns true if the record meets the condition.
    fn holds(&self, record: &Record<'_>) -> bool;

    /// Returns the first field that the condition needs and that is not in `known`, the fields of a
    /// format.
    fn missing(&self, known: &[&str]) -> Option<String>;
}

/// The conditions that requests must meet. All others are counted as skipped.
///
/// ```
/// use earrrl_logs::reading::{Filter, parse_bound};
///
/// let now = 1_700_000_000_000_000_000;
/// let filter = Filter { since: Some(parse_bound("2023-11-14T00:00:00Z", now)?), ..Filter::default() };
/// # let _ = filter;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Filter {
    /// The condition of `--where`, if it was given.
    pub condition: Option<Arc<dyn RecordCondition>>,
    /// The start of the selected time in nanoseconds since the epoch, inclusive.
    pub since: Option<u64>,
    /// The end of the selected time in nanoseconds since the epoch, exclusive.
    pub until: Option<u64>,
}

impl Filter {
    /// Returns the first field that the condition needs and that is not in `known`, the fields of a
    /// format.
    pub(super) fn missing(&self, known: &[&str]) -> Option<String> {
        self.condition
            .as_ref()
            .and_then(|condition| condition.missing(known))
    }

    /// Checks that a record is selected.
    ///
    /// # Errors
    /// Returns the reason for which the record is skipped.
    pub(super) fn check(&self, record: &Record<'_>) -> Result<(), Skip> {
        let time = record.time();
        if self.since.is_some_and(|since| time < since)
            || self.until.is_some_and(|until| time >= until)
        {
            return Err(Skip::OtherTime);
        }
        let condition = self.condition.as_ref();
        match condition.is_some_and(|condition| !condition.holds(record)) {
            true => Err(Skip::Filtered),
            false => Ok(()),
        }
    }
}

/// Parses the value of `--since` or `--until` into nanoseconds since the epoch. It is an age before
/// `now` such as `2h`, a date, or a date and a time, which is in UTC unless it names a zone.
///
/// ```
/// # use earrrl_logs::reading::parse_bound;
/// let now = 1_700_000_000_000_000_000;
/// assert_eq!(parse_bound("20s", now)?, now - 20_000_000_000);
/// assert_eq!(parse_bound("2023-11-14T22:13:20Z", now)?, now);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns a sentence about the expected forms if the text has none of them.
pub fn parse_bound(text: &str, now: u64) -> Result<u64, String> {
    if let Ok(age) = earrrl::internal::parse_duration(text) {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        return Ok(now.saturating_sub(age));
    }
    let midnight = || time::parse_iso(format!("{text}T00:00:00").as_bytes());
    time::parse_iso(text.as_bytes()).or_else(midnight).ok_or_else(|| {
        "expected a time such as 2024-01-31T12:00:00Z, a date such as 2024-01-31, or an age such as 2h"
            .into()
    })
}

#[cfg(test)]
mod cost_tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::envelope::Envelope;
    use crate::format::{Format, Hints, Parser};

    fn cost(rules: &[&str], path: &str, bytes: &str) -> Result<String, Skip> {
        let costs: Costs = rules
            .iter()
            .map(|rule| rule.parse::<CostRule>().unwrap())
            .collect();
        let mut parser = Parser::new(
            (Envelope::None, Format::Common),
            &Hints::default(),
            UNIX_EPOCH,
        );
        let line =
            format!(r#"a - - [17/May/2015:10:05:03 +0000] "GET {path} HTTP/1.1" 200 {bytes}"#);
        let record = parser.parse(line.as_bytes())?.unwrap();
        costs.of(&record).map(|cost| cost.to_string())
    }

    #[test]
    fn paths_before_the_field_before_the_fixed_cost() {
        let rules = [
            "2",
            "field:bytes",
            "path:/a/*=5",
            "path:/a/b=7",
            "path:/c=0.1",
        ];
        let cases = [
            ("/a/b", "5"),
            ("/c?x=1", "0.1"),
            ("/c/d", "12"),
            ("/", "12"),
        ];
        for (path, expected) in cases {
            assert_eq!(cost(&rules, path, "12").as_deref(), Ok(expected), "{path}");
        }
        assert_eq!(cost(&["2"], "/", "12").as_deref(), Ok("2"));
        assert_eq!(cost(&[], "/", "12").as_deref(), Ok("1"));
        assert_eq!(cost(&["field:bytes"], "/", "-").as_deref(), Ok("0"));
        assert_eq!(cost(&["field:bytes"], "/", "x"), Err(Skip::Cost));
        assert_eq!(cost(&["field:bytes"], "/", "-5"), Err(Skip::Cost));
    }

    #[test]
    fn mistakes_are_reported() {
        let costs = ["", "x", "-1", "NaN", "field:"];
        let paths = [
            "path:/a",
            "path:/a=",
            "path:/a=x",
            "path:=5",
            "path:/a*b=5",
            "path:/a**=5",
        ];
        for text in costs.into_iter().chain(paths) {
            assert!(text.parse::<CostRule>().is_err(), "{text}");
        }
    }
}

#[cfg(test)]
mod filter_tests {
    use super::*;

    #[test]
    fn bounds() {
        let second = 1_000_000_000;
        let now = 1_706_702_400 * second; // 2024-01-31T12:00:00Z
        for (text, seconds) in [
            ("2h", Some(1_706_695_200)),
            ("1d", Some(1_706_616_000)),
            ("2024-01-31", Some(1_706_659_200)),
            ("2024-01-31T12:00:00Z", Some(1_706_702_400)),
            ("2024-01-31 14:00:00+02:00", Some(1_706_702_400)),
            ("35000d", Some(0)),
            ("2024-02-30", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(
                parse_bound(text, now).ok(),
                seconds.map(|s| s * second),
                "{text}"
            );
        }
    }
}
