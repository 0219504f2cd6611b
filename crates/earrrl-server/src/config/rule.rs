//! The `[[rule]]` tables of the configuration.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};

use earrrl::{Action, Cost, MAX_CHARGES, Mode, Nanos, Quota, Rule, Wait, check_name};
use earrrl_redis::Consistency;
use toml::Spanned;

use super::attribute::{Condition, KeyPart, conditions, key};
use super::bounds::MAX_RULES;
use super::condition_index::ConditionIndex;
use super::problem::Problems;
use super::suggest::nearest;
use super::{file, value};
use crate::path::Paths;
use earrrl_tower::Prefixes;

/// The largest number of overrides that a rule may have.
const MAX_OVERRIDES: usize = 100_000;
/// The largest number of overrides of one rule that name no single value or network. The index
/// cannot find these, so each is compared with every request.
const MAX_COMPARED: usize = 1000;
/// The smallest and the largest value of the field `max_bytes`.
const MAX_BYTES: RangeInclusive<u64> = 1_000_000..=1_000_000_000_000_000;
const ACTIONS: [&str; 5] = ["deny", "shadow-ban", "quarantine", "delay", "observe"];

/// A validated rule of the configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleConfig {
    /// The rule's name.
    pub name: String,
    /// The rule's limit, its action over the limit, and the largest cost of a request.
    pub rule: Rule,
    /// The attributes whose values identify a client.
    pub key: Vec<KeyPart>,
    /// The conditions under which the rule applies to a request; all must hold.
    pub conditions: Vec<Condition>,
    /// The source of a request's cost.
    pub cost: CostSource,
    /// The smallest cost that a request's attribute can set.
    pub min_cost: Cost,
    /// The rule's own capacity in clients; `None` for the configuration's default.
    pub capacity: Option<usize>,
    /// The place of the rule's capacity in the file, if it is set.
    pub capacity_place: Option<Range<usize>>,
    /// The rule's verdict when the engine fails; `None` for the engine's policy, or for allowing
    /// the request if the engine has no policy.
    pub on_error: Option<OnError>,
    /// The treatment of a request that lacks an attribute of the key.
    pub missing: Missing,
    /// The consistency of the rule's decisions between servers that share a Redis.
    pub consistency: Consistency,
    /// The conditions under which a request is exempt from the rule; one is enough.
    pub exempt: Vec<Condition>,
    /// Different limits for some clients. The first override whose conditions all hold applies.
    pub overrides: Vec<Override>,
}

impl RuleConfig {
    /// Creates a rule that applies to all requests and identifies clients by the attribute
    /// `client`.
    pub fn new(name: &str, rule: Rule) -> Self {
        Self {
            name: name.to_owned(),
            rule,
            key: vec![KeyPart::Attribute("client".to_owned())],
            conditions: Vec::new(),
            cost: CostSource::Fixed(Cost::ONE),
            min_cost: Cost::ONE,
            capacity: None,
            capacity_place: None,
            on_error: None,
            missing: Missing::default(),
            consistency: Consistency::Exact,
            exempt: Vec::new(),
            overrides: Vec::new(),
        }
    }
}

impl RuleConfig {
    /// Makes the rule a dry run, which only counts what it would have denied.
    pub(super) fn observe(&mut self) {
        self.on_error = Some(OnError::Allow);
        let overrides = self.overrides.iter_mut().map(|entry| &mut entry.rule);
        for rule in overrides.chain([&mut self.rule]) {
            // This cannot fail, since every algorithm has the action `observe`.
            if let Ok(observing) = rule.clone().with_action(Action::Observe) {
                *rule = observing;
            }
        }
    }

    /// Returns true if the rule has conditions on descriptors of Envoy's rate limit service.
    pub fn serves_descriptors(&self) -> bool {
        let names = |condition: &Condition| {
            condition.attribute == "domain" || condition.attribute.starts_with("descriptor:")
        };
        self.conditions.iter().any(names)
    }
}

/// A different limit for some of a rule's clients.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Override {
    /// The conditions that a client must meet for the override to apply; all must hold.
    pub conditions: Vec<Condition>,
    /// The override's limit, with the action and the largest cost of the rule that it belongs to.
    pub rule: Rule,
}

impl Override {
    /// Returns true if every client that meets `conditions` also meets the conditions of this
    /// override.
    fn is_for_all_of(&self, conditions: &[Condition]) -> bool {
        let covered = |own: &Condition| conditions.iter().any(|other| own.covers(other));
        !self.conditions.is_empty() && self.conditions.iter().all(covered)
    }
}

impl Override {
    /// Sets the override's bound on bytes to that of its rule, if the override's limit can have
    /// one.
    fn bound_as(&mut self, rule: Option<&Rule>) {
        let max_bytes = rule.and_then(Rule::max_bytes);
        if let Some(Ok(bounded)) = max_bytes.map(|bytes| self.rule.clone().with_max_bytes(bytes)) {
            self.rule = bounded;
        }
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
    /// The cost is the value of the attribute of this name, or 1 if the request lacks it.
    Attribute(String),
}

/// The verdict of a rule when the engine fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// The rule does not deny the request, so the other rules decide.
    Allow,
    /// The rule denies the request.
    Deny,
}

/// The treatment of a request that lacks an attribute of a rule's key, or whose value of it is
/// empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// All such requests count as one client, so that no client evades the limit by leaving the
    /// attribute out.
    #[default]
    Share,
    /// The rule does not apply to such requests.
    Skip,
    /// Such requests are denied.
    Deny,
}

/// The settings that determine which paths count as equal and which addresses count as one client.
pub(super) struct RequestReading {
    pub(super) paths: Paths,
    pub(super) prefixes: Prefixes,
}

pub(super) fn validate_all(
    rules: &[Spanned<file::RuleTable>],
    reading: &RequestReading,
    problems: &mut Problems,
) -> Vec<RuleConfig> {
    if let Some(excess) = rules.get(MAX_RULES) {
        problems.add(excess.span(), format!("{} rules; at most {MAX_RULES}", rules.len()));
    }
    let mut names = HashMap::new();
    let mut valid: Vec<RuleConfig> = Vec::with_capacity(rules.len());
    for rule in rules {
        let name = &rule.get_ref().name;
        if names.insert(name.get_ref(), ()).is_some() {
            problems.add(name.span(), "name: another rule has it already");
        }
        valid.extend(validate(rule.get_ref(), reading, problems));
        let for_all = valid.iter().filter(|rule| rule.conditions.is_empty()).count();
        if for_all > MAX_CHARGES {
            let text = format!("match: {for_all} rules have none; at most {MAX_CHARGES} may");
            problems.add(name.span(), text);
            break;
        }
    }
    valid
}

fn validate(
    file: &file::RuleTable,
    reading: &RequestReading,
    problems: &mut Problems,
) -> Option<RuleConfig> {
    let paths = reading.paths;
    if let Err(error) = check_name(file.name.get_ref()) {
        problems.add(file.name.span(), error);
    }
    let action = action(file, problems);
    let max_cost = max_cost(file, problems);
    let rule = limit(&file.limit, action, max_cost, problems);
    let rule = rule.and_then(|rule| bounded(rule, file.max_bytes.as_ref(), problems));
    let cost = cost_source(&file.cost, paths, problems);
    if let (Some(rule), Some(field)) = (&rule, &file.cost) {
        passable(rule, &cost, field.span(), problems);
    }
    let key = key(&file.key, problems);
    let by_client = key.iter().any(|part| matches!(part, KeyPart::Attribute(n) if n == "client"));
    // Conditions on clients are compared with keys, which contain shortened addresses.
    let clients = |conditions: Vec<Condition>| match by_client {
        true => conditions.into_iter().map(|c| c.of_clients(reading.prefixes)).collect(),
        false => conditions,
    };
    let mut overrides = overrides(file, action, max_cost, paths, problems);
    for entry in &mut overrides {
        entry.bound_as(rule.as_ref());
        entry.conditions = clients(std::mem::take(&mut entry.conditions));
    }
    Some(RuleConfig {
        name: file.name.get_ref().clone(),
        key,
        conditions: conditions("match", &file.matching, paths, problems),
        min_cost: min_cost(file, &cost, max_cost, problems),
        cost,
        capacity: value::capacity(file.capacity.as_ref(), problems),
        on_error: on_error(file, problems),
        missing: missing(file, problems),
        consistency: consistency(file, problems),
        capacity_place: file.capacity.as_ref().map(Spanned::span),
        exempt: clients(conditions("exempt", &file.exempt, paths, problems)),
        overrides,
        rule: rule?,
    })
}

fn max_cost(file: &file::RuleTable, problems: &mut Problems) -> Option<Cost> {
    let field = file.max_cost.as_ref()?;
    value::cost("max_cost", field.get_ref(), |problem| problems.add(field.span(), problem))
}

/// Returns the smallest cost that a request's attribute can set. The default is 1: a client may
/// choose the attribute's value, and a cost of 0 would pass however much the client has used
/// before.
fn min_cost(
    file: &file::RuleTable,
    cost: &CostSource,
    max_cost: Option<Cost>,
    problems: &mut Problems,
) -> Cost {
    let Some(field) = &file.min_cost else { return Cost::ONE };
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

fn on_error(file: &file::RuleTable, problems: &mut Problems) -> Option<OnError> {
    let field = file.on_error.as_ref()?;
    match field.get_ref().as_str() {
        "allow" => Some(OnError::Allow),
        "deny" => Some(OnError::Deny),
        other => {
            let shown = other.escape_debug();
            problems.add(field.span(), format!("on_error: `{shown}` is none of allow, deny"));
            None
        }
    }
}

fn missing(file: &file::RuleTable, problems: &mut Problems) -> Missing {
    let Some(field) = &file.missing else { return Missing::default() };
    match field.get_ref().as_str() {
        "share" => Missing::Share,
        "skip" => Missing::Skip,
        "deny" => Missing::Deny,
        other => {
            let shown = other.escape_debug();
            problems.add(field.span(), format!("missing: `{shown}` is none of share, skip, deny"));
            Missing::default()
        }
    }
}

fn consistency(file: &file::RuleTable, problems: &mut Problems) -> Consistency {
    let Some(field) = &file.consistency else { return Consistency::Exact };
    match field.get_ref().as_str() {
        "exact" => Consistency::Exact,
        "near" => Consistency::Near,
        other => {
            let suggestion = nearest(other, ["exact", "near"]);
            let suggestion = suggestion.map(|name| format!("; did you mean `{name}`?"));
            let (shown, suggestion) = (other.escape_debug(), suggestion.unwrap_or_default());
            let problem = format!("consistency: `{shown}` is none of exact, near{suggestion}");
            problems.add(field.span(), problem);
            Consistency::Exact
        }
    }
}

fn action(file: &file::RuleTable, problems: &mut Problems) -> Action {
    let name = file.action.as_ref().map_or("deny", |field| field.get_ref());
    if let (Some(max_delay), false) = (&file.max_delay, name == "delay") {
        problems.add(max_delay.span(), "max_delay: only for action = \"delay\"");
    }
    match name {
        "deny" => Action::Deny,
        "shadow-ban" => Action::ShadowBan,
        "quarantine" => Action::Quarantine,
        "observe" => Action::Observe,
        "delay" => {
            let max = file.max_delay.as_ref();
            let max = max.and_then(|field| value::duration("max_delay", field, problems));
            if let (None, Some(action)) = (&file.max_delay, &file.action) {
                problems.add(action.span(), "action: delay needs max_delay, the longest hold");
            }
            Action::Delay { max: max.unwrap_or_default() }
        }
        _ => {
            if let Some(field) = &file.action {
                problems.add(field.span(), unknown_action(name));
            }
            Action::Deny
        }
    }
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

fn unknown_action(name: &str) -> String {
    let suggestion = nearest(name, ACTIONS).map(|name| format!("; did you mean `{name}`?"));
    format!(
        "action: `{}` is none of {}{}",
        name.escape_debug(),
        ACTIONS.join(", "),
        suggestion.unwrap_or_default()
    )
}

fn limit(
    field: &Spanned<String>,
    action: Action,
    max_cost: Option<Cost>,
    problems: &mut Problems,
) -> Option<Rule> {
    let rule = field.get_ref().parse::<Rule>().map_err(|error| {
        // The parser's error has a column within the rule's text, which is converted to a place in
        // the file.
        let start = field.span().start + error.column().unwrap_or(1);
        (start, format!("limit: {}", error.message()))
    });
    let rule = rule.and_then(|rule| {
        let start = field.span().start;
        let rule = rule.with_action(action).map_err(|error| (start, error.to_string()))?;
        match max_cost {
            Some(max_cost) => rule.with_max_cost(max_cost).map_err(|e| (start, e.to_string())),
            None => Ok(rule),
        }
    });
    match rule {
        Ok(rule) => Some(rule),
        Err((start, problem)) => {
            problems.add(start..field.span().end, problem);
            None
        }
    }
}

/// Sets the rule's bound on bytes from the field `max_bytes`.
fn bounded(rule: Rule, field: Option<&Spanned<u64>>, problems: &mut Problems) -> Option<Rule> {
    let Some(field) = field else { return Some(rule) };
    let bytes = usize::try_from(*field.get_ref()).unwrap_or(usize::MAX);
    match rule.with_max_bytes(bytes) {
        Ok(bounded) => {
            value::number("max_bytes", Some(field), 0, MAX_BYTES, problems);
            Some(bounded)
        }
        Err(error) => {
            problems.add(field.span(), error);
            None
        }
    }
}

fn overrides(
    file: &file::RuleTable,
    action: Action,
    max_cost: Option<Cost>,
    paths: Paths,
    problems: &mut Problems,
) -> Vec<Override> {
    if let Some(excess) = file.overrides.get(MAX_OVERRIDES) {
        let count = file.overrides.len();
        problems.add(excess.key.span(), format!("{count} overrides; at most {MAX_OVERRIDES}"));
    }
    let mut valid: Vec<Override> = Vec::with_capacity(file.overrides.len().min(MAX_OVERRIDES));
    let mut index = ConditionIndex::default();
    for entry in file.overrides.iter().take(MAX_OVERRIDES) {
        let conditions = conditions("override", entry.key.get_ref(), paths, problems);
        if entry.key.get_ref().is_empty() {
            problems.add(entry.key.span(), "override: key says for whom, as { user = \"alice\" }");
        } else if is_covered(&valid, &index, &conditions) {
            let why =
                "override: one before it is for all of these, and the first counts; put it first";
            problems.add(entry.key.span(), why);
        }
        if let Some(rule) = limit(&entry.limit, action, max_cost, problems) {
            index.add(valid.len(), &conditions);
            valid.push(Override { conditions, rule });
        }
        if index.compared() > MAX_COMPARED {
            let why = format!("more than {MAX_COMPARED} overrides by prefixes alone");
            problems.add(entry.key.span(), why);
            break;
        }
    }
    valid
}

/// Returns true if one of the overrides in `valid` applies to all requests that meet `conditions`,
/// so that a later override for these would never apply.
fn is_covered(valid: &[Override], index: &ConditionIndex, conditions: &[Condition]) -> bool {
    let samples: Vec<_> =
        conditions.iter().map(|one| (&one.attribute, one.sample().unwrap_or_default())).collect();
    let value = |name: &str| {
        let sample = samples.iter().find(|(attribute, _)| *attribute == name);
        sample.map(|(_, value)| value.as_bytes())
    };
    index.find(value, |place| valid[place].is_for_all_of(conditions)).is_some()
}

/// Reports costs above the rule's limit, since the rule would deny every request of such a cost.
fn passable(rule: &Rule, cost: &CostSource, span: Range<usize>, problems: &mut Problems) {
    let costs: Vec<Cost> = match cost {
        CostSource::Fixed(cost) => vec![*cost],
        CostSource::ByPath(costs) => costs.iter().map(|(_, cost)| *cost).collect(),
        CostSource::Attribute(_) => Vec::new(),
    };
    for cost in costs {
        if cost > rule.max_cost() {
            let max_cost = rule.max_cost();
            problems.add(span.clone(), format!("cost: {cost} is above max_cost, {max_cost}"));
            continue;
        }
        let (_, decision) = rule.limit().decide(None, Nanos::ZERO, cost, Mode::Peek);
        if decision.retry_after == Wait::Never {
            let most = Quota::of(rule.limit()).units;
            let why = format!("cost: {cost} can never pass under this limit; at most {most} can");
            problems.add(span.clone(), why);
        }
    }
}

fn cost_source(
    field: &file::Placed<toml::Value>,
    paths: Paths,
    problems: &mut Problems,
) -> CostSource {
    let Some(field) = field else { return CostSource::Fixed(Cost::ONE) };
    let mut problem = |message: String| problems.add(field.span(), message);
    match field.get_ref() {
        toml::Value::String(text) => match text.strip_prefix("attribute:") {
            Some(name) if !name.is_empty() => CostSource::Attribute(name.to_owned()),
            _ => {
                problem(
                    "cost: expected a number, \"attribute:NAME\" or a table by path".to_owned(),
                );
                CostSource::Fixed(Cost::ONE)
            }
        },
        toml::Value::Table(table) => CostSource::ByPath(by_path(table, paths, &mut problem)),
        number => CostSource::Fixed(value::cost("cost", number, problem).unwrap_or(Cost::ONE)),
    }
}

/// Validates the costs by path, and sorts them by the length of the pattern, longest first, so that
/// the most specific pattern applies.
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
            (Ok(condition), Some(cost)) => costs.push((path.len(), condition, cost)),
            (Err(why), _) => problem(format!("cost: {why}")),
            (Ok(_), None) => {}
        }
    }
    costs.sort_by_key(|(length, ..)| std::cmp::Reverse(*length));
    costs.into_iter().map(|(_, condition, cost)| (condition, cost)).collect()
}
