//! The terms of a rule, which its overrides share but for the algorithm: the action, the cost and the bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use earrrl::{Action, Cost, OnExpiry, Rule};
use earrrl_tower::path::Paths;

use super::cost::{CostSource, cost_source, max_cost, never_passes};
use crate::config::engine::EngineConfig;
use crate::config::table::{Field, Table};

/// The treatments of a rule's reservations that expire.
const ON_EXPIRY: [(&str, OnExpiry); 2] = [("keep", OnExpiry::Keep), ("release", OnExpiry::Release)];
/// The bounds of the field `max_bytes`.
const MAX_BYTES: RangeInclusive<u64> = 1_000_000..=1_000_000_000_000_000;

/// The terms of a rule that its overrides share.
#[derive(Debug)]
pub(super) struct Terms {
    action: Action,
    pub(super) cost: CostSource,
    pub(super) max_cost: Option<Cost>,
    max_bytes: Option<usize>,
    on_expiry: OnExpiry,
    is_on_redis: bool,
}

impl Terms {
    /// Reads the fields beside `limit` that are terms of a rule.
    pub(super) fn read(table: &Table<'_>, paths: Paths, engine: &EngineConfig) -> Self {
        let cost = cost_source(table, paths);
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
            is_on_redis: matches!(engine, EngineConfig::Redis(_)),
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

    /// Reads the limit of an override, which has the rule's bound on bytes if its algorithm can have one.
    pub(super) fn limit_of_override(&self, field: Field<'_>) -> Option<Rule> {
        let rule = self.limit(field, None)?;
        let bounded = self
            .max_bytes
            .map(|bytes| rule.clone().with_max_bytes(bytes));
        Some(bounded.and_then(Result::ok).unwrap_or(rule))
    }

    /// Reads a limit, under which the cost in the field `cost`, or the usual one, must be able to pass.
    fn limit(&self, field: Field<'_>, cost: Option<Field<'_>>) -> Option<Rule> {
        let place = field.span();
        let rule = field.text()?.parse::<Rule>().map_err(|error| {
            // The parser's error has a column within the rule's text, which begins after a quote.
            let start = place.start + error.column().unwrap_or(1);
            field.mistake_at(start..place.end, error.message());
        });
        let rule = rule.ok()?.with_action(self.action);
        let rule = rule.and_then(|rule| match self.max_cost {
            Some(most) => rule.with_max_cost(most),
            None => Ok(rule),
        });
        let rule = rule.map_err(|error| field.note(error)).ok()?;
        if self.is_on_redis
            && let Err(error) = earrrl_redis::check_rule(&rule)
        {
            field.mistake(error);
        }
        if let Some(why) = never_passes(&rule, &self.cost) {
            cost.unwrap_or(field).note(why);
        }
        Some(rule.with_on_expiry(self.on_expiry))
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
