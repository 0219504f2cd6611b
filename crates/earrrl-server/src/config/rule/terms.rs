//! The terms of a rule, which its overrides share but for the algorithm: the action, the bounds and the cost, with its
//! fields `cost`, `min_cost` and `max_cost`; and the overrides: different limits for some of its clients.

use std::ops::RangeInclusive;
use std::time::Duration;

use earrrl::{Action, Cost, Limit, Mode, Nanos, OnExpiry, Quota, Rule, RuleError, Wait};
use earrrl_tower::Prefixes;
use earrrl_tower::path::Paths;

use crate::config::attribute::{Condition, KeyPart, attribute_name, client_lengths, conditions};
use crate::config::condition_index::ConditionIndex;
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
    fn limit_at_run_time(&self, text: &str) -> Result<Rule, String> {
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

/// The source of a request's cost if the request itself states none.
#[derive(Clone, Debug, PartialEq)]
pub enum CostSource {
    /// All requests have this cost.
    Fixed(Cost),
    /// The cost depends on the path: the first matching condition determines it, and other paths
    /// cost 1.
    ByPath(Vec<(Condition, Cost)>),
    /// The cost is the value of the attribute of this name, or the rule's least cost if the request lacks it.
    Attribute(String),
}

/// Reads the field `max_cost`, the largest cost of a request.
pub(super) fn max_cost(table: &Table<'_>, cost: &CostSource) -> Option<Cost> {
    let field = table.field("max_cost")?;
    let is_set = table.has("cost") && matches!(cost, CostSource::Fixed(_));
    match field.cost()? {
        Cost::ZERO => field.refuse("0 is not above 0"),
        most if most < Cost::ONE && !is_set => field.refuse(format!(
            "{most} is below 1, the cost of a request without one; set cost"
        )),
        most => Some(most),
    }
}

/// Reads the smallest cost that a request's attribute can set. The default is 1: a client may choose the attribute's
/// value, and a cost of 0 would pass however much the client has used before.
pub(super) fn min_cost(table: &Table<'_>, cost: &CostSource, max_cost: Option<Cost>) -> Cost {
    let is_chosen = matches!(cost, CostSource::Attribute(_));
    table.only_if(is_chosen, "cost = \"attribute:NAME\"", &["min_cost"]);
    let Some(field) = table.field("min_cost") else {
        return Cost::ONE;
    };
    let min = field.cost().unwrap_or(Cost::ONE);
    if let Some(max) = max_cost.filter(|max| min > *max) {
        field.mistake(format!("{min} is above max_cost, {max}"));
    }
    min
}

/// Reads the field `cost`, the source of a request's cost.
fn cost_source(table: &Table<'_>, paths: Paths) -> CostSource {
    let found = table.field("cost").and_then(|field| {
        if field.is_text() {
            field.checked(attribute).map(CostSource::Attribute)
        } else if field.is_table() {
            Some(CostSource::ByPath(by_path(field, paths)))
        } else {
            field.cost().map(CostSource::Fixed)
        }
    });
    found.unwrap_or(CostSource::Fixed(Cost::ONE))
}

/// Returns the name of the attribute whose value is the cost.
fn attribute(text: &str) -> Result<String, String> {
    if text.starts_with("attribute:") || text.starts_with("header:") {
        return attribute_name(text);
    }
    let shown = text.escape_debug();
    let want = "expected a number, \"attribute:NAME\", \"header:NAME\" or a table by path";
    Err(format!("`{shown}`: {want}"))
}

/// Returns why a cost would deny every request that has it.
fn never_passes(rule: &Rule, source: &CostSource) -> Option<String> {
    let costs: Vec<Cost> = match source {
        CostSource::Fixed(cost) => vec![*cost],
        CostSource::ByPath(costs) => costs.iter().map(|(_, cost)| *cost).collect(),
        CostSource::Attribute(_) => Vec::new(),
    };
    let max_cost = rule.max_cost();
    costs.into_iter().find_map(|cost| match cost > max_cost {
        true => Some(format!("cost: {cost} is above max_cost, {max_cost}")),
        false => check_passes(rule.limit(), cost).err(),
    })
}

/// Reads the costs by path, and sorts them so that the most specific pattern applies: the one with the most characters
/// besides wildcards, and of two of the same length the one without a wildcard.
fn by_path(field: Field<'_>, paths: Paths) -> Vec<(Condition, Cost)> {
    let mut costs = Vec::new();
    for (path, number) in field.entries() {
        let path = path.get_ref();
        let condition = Condition::new("path", path, paths);
        let condition = condition.map_err(|why| number.mistake(why)).ok();
        if let Some((condition, cost)) = condition.zip(number.cost()) {
            let wildcards = path.matches('*').count();
            costs.push(((path.len() - wildcards, wildcards == 0), condition, cost));
        }
    }
    costs.sort_by_key(|(specific, ..)| std::cmp::Reverse(*specific));
    let costs = costs.into_iter();
    costs
        .map(|(_, condition, cost)| (condition, cost))
        .collect()
}

/// Checks that a request of a new client passes.
///
/// # Errors
/// Returns the costs that pass if this one never does.
pub(in crate::config) fn check_passes(limit: &Limit, cost: Cost) -> Result<(), String> {
    let (_, decision) = limit.decide(None, Nanos::ZERO, cost, Mode::Peek);
    if decision.retry_after != Wait::Never {
        return Ok(());
    }
    let can = match Quota::of(limit).units {
        0 => "only costs below 1 can".to_owned(),
        most => format!("at most {most} can"),
    };
    Err(format!(
        "cost: {cost} can never pass under this limit; {can}"
    ))
}

/// The largest number of overrides that a rule may have.
const MAX_OVERRIDES: usize = 100_000;
/// The largest number of overrides of one rule that name no single value or network. The index
/// cannot find these, so each is compared with every request.
const MAX_COMPARED: usize = 1000;

/// A different limit for some of a rule's clients.
#[derive(Clone, Debug)]
pub struct Override {
    /// The conditions that a client must meet for the override to apply; all must hold.
    pub conditions: Vec<Condition>,
    /// The override's limit, with the action and the largest cost of the rule that it belongs to.
    pub rule: Rule,
}

impl Override {
    /// Returns the override for one client, which is set at run time. `values` are those of the attributes of
    /// the rule's key.
    ///
    /// # Errors
    /// Returns a sentence about the mistake in the values or in the limit.
    pub fn of_client(
        terms: &Terms,
        key: &[KeyPart],
        values: &[String],
        limit: &str,
    ) -> Result<Self, String> {
        let read = |part: &&KeyPart| part.attributes().next().is_some();
        let parts: Vec<_> = key.iter().filter(read).collect();
        if parts.is_empty() {
            return Err(
                "key: the rule has one limit for all clients; change it in the file".into(),
            );
        }
        if parts.len() != values.len() {
            let names: Vec<_> = parts.iter().map(ToString::to_string).collect();
            return Err(format!(
                "key: {} parts; expected {}: {}",
                values.len(),
                parts.len(),
                names.join(", ")
            ));
        }
        let lengths = client_lengths(key).next().unwrap_or_default();
        let prefixes = lengths.or(terms.prefixes);
        let condition = |(part, value): (&&KeyPart, &String)| {
            let found = part.split(value.as_bytes());
            let found = found
                .and_then(|(one, value)| Some((one.attribute()?, str::from_utf8(value).ok()?)));
            let Some((attribute, text)) = found else {
                let value = value.escape_debug();
                return Err(format!(
                    "key: `{value}` names none of {part}; expected one of them, `=` and its value"
                ));
            };
            Condition::of_client(attribute, text, terms.paths, prefixes)
                .map_err(|why| format!("key: {attribute}: {why}"))
        };
        let conditions = parts.iter().zip(values).map(condition);
        Ok(Self {
            conditions: conditions.collect::<Result<_, _>>()?,
            rule: terms
                .limit_at_run_time(limit)
                .map_err(|why| format!("limit: {why}"))?,
        })
    }

    /// Returns true if all clients of the override are exempt from its rule.
    pub fn is_exempt_by(&self, exempt: &[Condition]) -> bool {
        are_exempt(&self.conditions, exempt)
    }

    /// Returns true if every client that meets `conditions` also meets the conditions of this
    /// override.
    fn is_for_all_of(&self, conditions: &[Condition]) -> bool {
        let covered = |own: &Condition| conditions.iter().any(|other| own.covers(other));
        !self.conditions.is_empty() && self.conditions.iter().all(covered)
    }
}

/// Returns true if one of the conditions in `exempt` holds for all clients that meet `conditions`.
fn are_exempt(conditions: &[Condition], exempt: &[Condition]) -> bool {
    let covers = |one: &Condition| conditions.iter().any(|own| one.covers(own));
    exempt.iter().any(covers)
}

/// Reads the overrides of a rule.
pub(super) fn overrides(
    table: &Table<'_>,
    exempt: &[Condition],
    terms: &Terms,
    paths: Paths,
) -> Vec<Override> {
    let tables = table.tables("override");
    if let Some(excess) = tables.get(MAX_OVERRIDES) {
        excess.mistake(format!(
            "{} overrides; at most {MAX_OVERRIDES}",
            tables.len()
        ));
    }
    let mut valid: Vec<Override> = Vec::with_capacity(tables.len());
    let mut index = ConditionIndex::default();
    for table in tables {
        let limit = table.required("limit");
        let Some(key) = table.required("key") else {
            continue;
        };
        let conditions = conditions(key, paths);
        if key.is_table() && key.entries().is_empty() {
            key.mistake("expected the clients, as { user = \"alice\" }");
        } else if are_exempt(&conditions, exempt) {
            key.mistake("these are exempt from the rule, so the override never applies");
        } else if is_covered(&valid, &index, &conditions) {
            key.mistake(
                "an override before is for all of these, and the first counts; put it first",
            );
        }
        if let Some(rule) = limit.and_then(|field| terms.limit(field, None)) {
            let rule = terms.bounded(rule);
            index.add(valid.len(), &conditions);
            valid.push(Override { conditions, rule });
        }
        if index.compared() == MAX_COMPARED + 1 {
            key.mistake(format!(
                "more than {MAX_COMPARED} overrides by prefixes alone"
            ));
        }
    }
    valid
}

/// Returns true if one of the overrides in `valid` applies to all requests that meet `conditions`,
/// so that a later override for these would never apply.
fn is_covered(valid: &[Override], index: &ConditionIndex, conditions: &[Condition]) -> bool {
    let samples: Vec<_> = conditions
        .iter()
        .map(|one| (&one.attribute, one.sample().unwrap_or_default()))
        .collect();
    let value = |name: &str| {
        let sample = samples.iter().find(|(attribute, _)| *attribute == name);
        sample.map(|(_, value)| value.as_bytes())
    };
    index
        .find(value, |place| valid[place].is_for_all_of(conditions))
        .is_some()
}
