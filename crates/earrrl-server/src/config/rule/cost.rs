//! The fields `cost`, `min_cost` and `max_cost` of a rule.

use earrrl::{Cost, Limit, Mode, Nanos, Quota, Rule, Wait};
use earrrl_tower::path::Paths;

use crate::config::attribute::{Condition, attribute_name};
use crate::config::table::{Field, Table};

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
pub(super) fn cost_source(table: &Table<'_>, paths: Paths) -> CostSource {
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
pub(super) fn never_passes(rule: &Rule, source: &CostSource) -> Option<String> {
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
