//! The fields `cost`, `min_cost` and `max_cost` of a rule.

use earrrl::{Cost, Rule};
use toml::Spanned;

use super::overrides::Override;
use crate::config::attribute::{Condition, attribute_name};
use crate::config::problem::Problems;
use crate::config::{file, value};
use earrrl_tower::path::Paths;

/// The source of a request's cost if the request itself states none.
#[derive(Clone, Debug, PartialEq)]
pub enum CostSource {
    /// All requests have this cost.
    Fixed(Cost),
    /// The cost depends on the path: the first matching condition determines it, and other paths
    /// cost 1.
    ByPath(Vec<(Condition, Cost)>),
    /// The cost is the value of the attribute of this name, or 1 if the request lacks it.
    Attribute(String),
}

pub(super) fn max_cost(file: &file::RuleTable, problems: &mut Problems) -> Option<Cost> {
    let field = file.max_cost.as_ref()?;
    let mut problem = |problem: String| problems.add(field.span(), problem);
    let cost = value::cost("max_cost", field.get_ref(), &mut problem)?;
    if cost.is_zero() {
        problem("max_cost: 0 is not above 0".to_owned());
        return None;
    }
    Some(cost)
}

/// Returns the smallest cost that a request's attribute can set. The default is 1: a client may
/// choose the attribute's value, and a cost of 0 would pass however much the client has used
/// before.
pub(super) fn min_cost(
    file: &file::RuleTable,
    cost: &CostSource,
    max_cost: Option<Cost>,
    problems: &mut Problems,
) -> Cost {
    let Some(field) = &file.min_cost else {
        return Cost::ONE;
    };
    let mut problem = |problem: String| problems.add(field.span(), problem);
    if !matches!(cost, CostSource::Attribute(_)) {
        problem("min_cost: expected only with cost = \"attribute:NAME\"".to_owned());
    }
    let min = value::cost("min_cost", field.get_ref(), &mut problem).unwrap_or(Cost::ONE);
    if let Some(max) = max_cost.filter(|max| min > *max) {
        problem(format!("min_cost: {min} is above max_cost, {max}"));
    }
    min
}

/// Validates the source of a request's cost.
pub(super) fn cost_source(
    field: &file::Placed<toml::Value>,
    paths: Paths,
    problems: &mut Problems,
) -> CostSource {
    let Some(field) = field else {
        return CostSource::Fixed(Cost::ONE);
    };
    let mut problem = |message: String| problems.add(field.span(), message);
    match field.get_ref() {
        toml::Value::String(text) => attribute(text).map_or_else(
            |why| {
                problem(format!("cost: {why}"));
                CostSource::Fixed(Cost::ONE)
            },
            CostSource::Attribute,
        ),
        toml::Value::Table(table) => CostSource::ByPath(by_path(table, paths, &mut problem)),
        number => {
            let cost = value::cost("cost", number, &mut problem).unwrap_or(Cost::ONE);
            CostSource::Fixed(cost)
        }
    }
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

/// Reports costs that can never pass: a configured one under the limit of the rule or of an override, and
/// the usual cost of 1 if `max_cost` is lower.
pub(super) fn check_costs(
    (rule, overrides): (&Rule, &[Override]),
    cost: &CostSource,
    file: &file::RuleTable,
    problems: &mut Problems,
) {
    let most = rule.max_cost();
    let is_fixed = matches!(cost, CostSource::Fixed(_));
    if let Some(field) = &file.max_cost
        && most < Cost::ONE
        && !(file.cost.is_some() && is_fixed)
    {
        let why =
            format!("max_cost: {most} is below 1, the cost of a request without one; set cost");
        return problems.add(field.span(), why);
    }
    let place = file
        .cost
        .as_ref()
        .map_or_else(|| file.limit.span(), Spanned::span);
    let mut problem = |why| problems.add(place.clone(), why);
    check_under(rule, cost, &mut problem);
    // An override with an invalid limit is missing here, and is a problem already.
    if overrides.len() == file.overrides.len() {
        for (entry, table) in overrides.iter().zip(&file.overrides) {
            let mut problem = |why| problems.add(table.limit.span(), why);
            check_under(&entry.rule, cost, &mut problem);
        }
    }
}

/// Reports costs above a limit, which would deny every request of such a cost.
fn check_under(rule: &Rule, source: &CostSource, problem: &mut dyn FnMut(String)) {
    let costs: Vec<Cost> = match source {
        CostSource::Fixed(cost) => vec![*cost],
        CostSource::ByPath(costs) => costs.iter().map(|(_, cost)| *cost).collect(),
        CostSource::Attribute(_) => Vec::new(),
    };
    for cost in costs {
        let max_cost = rule.max_cost();
        if cost > max_cost {
            problem(format!("cost: {cost} is above max_cost, {max_cost}"));
        } else if let Err(why) = value::check_passes(rule.limit(), cost) {
            problem(why);
        }
    }
}

/// Validates the costs by path, and sorts them so that the most specific pattern applies: the one with
/// the most characters besides wildcards, and of two of the same length the one without a wildcard.
fn by_path(
    table: &toml::Table,
    paths: Paths,
    problem: &mut dyn FnMut(String),
) -> Vec<(Condition, Cost)> {
    let mut costs = Vec::with_capacity(table.len());
    for (path, number) in table {
        let condition = Condition::new("path", path, paths);
        let cost = value::cost("cost", number, &mut *problem);
        match (condition, cost) {
            (Ok(condition), Some(cost)) => {
                let wildcards = path.matches('*').count();
                costs.push(((path.len() - wildcards, wildcards == 0), condition, cost));
            }
            (Err(why), _) => problem(format!("cost: {why}")),
            (Ok(_), None) => {}
        }
    }
    costs.sort_by_key(|(specific, ..)| std::cmp::Reverse(*specific));
    costs
        .into_iter()
        .map(|(_, condition, cost)| (condition, cost))
        .collect()
}
