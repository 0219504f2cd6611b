//! The terms of a rule, which its overrides share but for the algorithm: the action, the cost and the bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use earrrl::{Action, Cost, OnExpiry, Rule, RuleError};
use earrrl_tower::Prefixes;
use earrrl_tower::path::Paths;

use super::cost::{CostSource, cost_source, max_cost, never_passes};
use crate::config::engine::EngineConfig;
use crate::config::table::{Field, Table};

/// The treatments of a rule's reservations that expire.
const ON_EXPIRY: [(&str, OnExpiry); 2] = [("keep", OnExpiry::Keep), ("release", OnExpiry::Release)];
/// The bounds of the field `max_bytes`.
const MAX_BYTES: RangeInclusive<u64> = 1_000_000..=1_000_000_000_000_000;

/// The settings outside of the rules that rules depend on.
pub(in crate::config) struct Surroundings<'c> {
    /// The paths that count as equal.
    pub(in crate::config) paths: Paths,
    /// The addresses that count as one client.
    pub(in crate::config) prefixes: Prefixes,
    /// The engine, which may be unable to count a limit exactly.
    pub(in crate::config) engine: &'c EngineConfig,
}

/// The terms of a rule that its overrides share.
#[derive(Clone, Debug)]
pub struct Terms {
    pub(super) action: Action,
    pub(super) cost: CostSource,
    pub(super) max_cost: Option<Cost>,
    max_bytes: Option<usize>,
    on_expiry: OnExpiry,
    is_on_redis: bool,
    pub(super) paths: Paths,
    pub(super) prefixes: Prefixes,
}

impl Terms {
    /// Reads the fields beside `limit` that are terms of a rule.
    pub(super) fn read(table: &Table<'_>, around: &Surroundings<'_>) -> Self {
        let cost = cost_source(table, around.paths);
        Self {
            action: action(table),
            max_cost: max_cost(table, &cost),
            cost,
            max_bytes: table
                .number("max_bytes", MAX_BYTES)
                .map(|bytes| bytes as usize),
            on_expiry: table
                .choice("on_expiry", &ON_EXPIRY)
                .unwrap_or(OnExpiry::Keep),
            is_on_redis: matches!(around.engine, EngineConfig::Redis(_)),
            paths: around.paths,
            prefixes: around.prefixes,
        }
    }

    /// Reads the rule's own limit, whose clients must be able to exceed `max_bytes`.
    pub(super) fn own_limit(&self, table: &Table<'_>) -> Option<Rule> {
        let field = table.required("limit")?;
        let rule = self.limit(field, table.field("cost"))?;
        match (table.field("max_bytes"), self.max_bytes) {
            (Some(field), Some(bytes)) => {
                let bounded = rule.with_max_bytes(bytes);
                bounded.map_err(|error| field.note(error)).ok()
            }
            _ => Some(rule),
        }
    }

    /// Returns the limit of an override that is set at run time.
    ///
    /// # Errors
    /// Returns why the text is no limit for clients of this rule.
    pub(super) fn limit_at_run_time(&self, text: &str) -> Result<Rule, String> {
        let rule = text.parse().and_then(|rule| self.completed(rule));
        let rule = rule.map_err(|error| error.to_string())?;
        if self.is_on_redis {
            earrrl_redis::check_rule(&rule).map_err(|error| error.to_string())?;
        }
        match never_passes(&rule, &self.cost) {
            Some(why) => Err(why),
            None => Ok(self.bounded(rule)),
        }
    }

    /// Returns the rule with the terms that every algorithm has.
    fn completed(&self, rule: Rule) -> Result<Rule, RuleError> {
        let rule = rule.with_action(self.action)?;
        let rule = match self.max_cost {
            Some(most) => rule.with_max_cost(most)?,
            None => rule,
        };
        Ok(rule.with_on_expiry(self.on_expiry))
    }

    /// Returns the rule with the bound on bytes if its algorithm can have one.
    pub(super) fn bounded(&self, rule: Rule) -> Rule {
        let bounded = self
            .max_bytes
            .map(|bytes| rule.clone().with_max_bytes(bytes));
        bounded.and_then(Result::ok).unwrap_or(rule)
    }

    /// Reads a limit, under which the cost in the field `cost`, or the usual one, must be able to pass.
    pub(super) fn limit(&self, field: Field<'_>, cost: Option<Field<'_>>) -> Option<Rule> {
        let place = field.span();
        let text = field.parsed("a limit, as \"fixed-window 5/1m\"", Some)?;
        let rule = text.parse::<Rule>().map_err(|error| {
            // The parser's error has a column within the rule's text, which begins after a quote.
            let start = place.start + error.column().unwrap_or(1);
            field.mistake_at(start..place.end, error.message());
        });
        let rule = self.completed(rule.ok()?);
        let rule = rule.map_err(|error| field.note(error)).ok()?;
        if self.is_on_redis
            && let Err(error) = earrrl_redis::check_rule(&rule)
        {
            field.mistake(error);
        }
        if let Some(why) = never_passes(&rule, &self.cost) {
            cost.unwrap_or(field).note(why);
        }
        Some(rule)
    }
}

/// Reads the fields `action` and `max_delay`.
fn action(table: &Table<'_>) -> Action {
    let above_zero = |duration: &Duration| !duration.is_zero();
    let want = "a duration above 0, as \"250ms\" or \"2s\"";
    let max = table
        .duration("max_delay", want, above_zero)
        .unwrap_or_default();
    let actions = [
        Action::Deny,
        Action::ShadowBan,
        Action::Quarantine,
        Action::Delay { max },
        Action::Observe,
    ];
    let named = actions.map(|action| (action_name(action), action));
    let action = table.choice("action", &named).unwrap_or(Action::Deny);
    let delays = matches!(action, Action::Delay { .. });
    table.only_if(delays, "action = \"delay\"", &["max_delay"]);
    if let Some(field) = table.field("action")
        && delays
        && !table.has("max_delay")
    {
        field.mistake("delay needs max_delay, the longest delay of a request");
    }
    action
}

/// Returns the name of an action, as the rule grammar has it.
pub fn action_name(action: Action) -> &'static str {
    match action {
        Action::ShadowBan => "shadow-ban",
        Action::Quarantine => "quarantine",
        Action::Delay { .. } => "delay",
        Action::Observe => "observe",
        _ => "deny",
    }
}
