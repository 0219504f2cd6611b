//! The `[[rule]]` tables of the configuration.

mod action;
mod cost;
mod limit;
mod overrides;

use std::collections::HashSet;
use std::ops::Range;

use earrrl::{Action, Cost, MAX_CHARGES, OnExpiry, Rule, check_name};
use earrrl_redis::Consistency;
use toml::Spanned;

use self::action::{CONSISTENCY, ON_EXPIRY, action};
use self::cost::{check_costs, cost_source, max_cost, min_cost};
use self::limit::{SharedTerms, bounded, limit};
use self::overrides::overrides;
use super::attribute::{Condition, KeyPart, client_key, conditions};
use super::bounds::MAX_RULES;
use super::problem::Problems;
use super::{file, value};
use earrrl_tower::Prefixes;
use earrrl_tower::path::Paths;

pub use self::action::{OnError, OnMissing, action_name};
pub use self::cost::CostSource;
pub use self::overrides::Override;

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
    pub missing: OnMissing,
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
            missing: OnMissing::default(),
            consistency: Consistency::Exact,
            exempt: Vec::new(),
            overrides: Vec::new(),
        }
    }

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

    /// Cuts the addresses in conditions on clients to the prefixes that keys contain, so that the
    /// two can be compared.
    fn cut_clients(&mut self, prefixes: Prefixes) {
        let overrides = self.overrides.iter_mut().map(|entry| &mut entry.conditions);
        for conditions in overrides.chain([&mut self.exempt]) {
            let all = std::mem::take(conditions).into_iter();
            *conditions = all
                .map(|condition| condition.of_clients(prefixes))
                .collect();
        }
    }
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
        problems.add(
            excess.span(),
            format!("{} rules; at most {MAX_RULES}", rules.len()),
        );
    }
    let mut names = HashSet::new();
    let mut valid: Vec<RuleConfig> = Vec::with_capacity(rules.len());
    for rule in rules {
        let name = &rule.get_ref().name;
        if !names.insert(name.get_ref()) {
            problems.add(name.span(), "name: another rule has it already");
        }
        valid.extend(validate(rule.get_ref(), reading, problems));
        let for_all = valid
            .iter()
            .filter(|rule| rule.conditions.is_empty())
            .count();
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
    let terms = SharedTerms {
        action: action(file, problems),
        max_cost: max_cost(file, problems),
    };
    let rule = limit(&file.limit, terms, problems);
    let rule = rule.and_then(|rule| bounded(rule, file.max_bytes.as_ref(), problems));
    let on_expiry = value::choice("on_expiry", &file.on_expiry, &ON_EXPIRY, problems);
    let on_expiry = on_expiry.unwrap_or(OnExpiry::Keep);
    let rule = rule.map(|rule| rule.with_on_expiry(on_expiry));
    let cost = cost_source(&file.cost, paths, problems);
    let exempt = conditions("exempt", &file.exempt, paths, problems);
    let mut config = RuleConfig {
        name: file.name.get_ref().clone(),
        key: client_key(&file.key, problems),
        overrides: overrides((file, &exempt), terms, paths, problems),
        conditions: conditions("match", &file.matching, paths, problems),
        min_cost: min_cost(file, &cost, terms.max_cost, problems),
        cost,
        capacity: value::capacity(file.capacity.as_ref(), problems),
        on_error: value::choice("on_error", &file.on_error, &OnError::NAMED, problems),
        missing: value::choice("missing", &file.missing, &OnMissing::NAMED, problems)
            .unwrap_or_default(),
        consistency: value::choice("consistency", &file.consistency, &CONSISTENCY, problems)
            .unwrap_or(Consistency::Exact),
        capacity_place: file.capacity.as_ref().map(Spanned::span),
        exempt,
        rule: rule?,
    };
    for entry in &mut config.overrides {
        entry.bound_as(&config.rule);
        entry.rule = entry.rule.clone().with_on_expiry(on_expiry);
    }
    check_concurrent(&config, file, problems);
    check_costs(
        (&config.rule, &config.overrides),
        &config.cost,
        file,
        problems,
    );
    if config
        .key
        .iter()
        .any(|part| matches!(part, KeyPart::Attribute(name) if name == "client"))
    {
        config.cut_clients(reading.prefixes);
    }
    Some(config)
}

/// Reports fields that contradict a limit of concurrent: its places are for live holders, all of
/// them known to one store.
fn check_concurrent(config: &RuleConfig, file: &file::RuleTable, problems: &mut Problems) {
    let is_concurrent = |rule: &Rule| rule.limit().is_concurrent();
    let own = is_concurrent(&config.rule);
    if config
        .overrides
        .iter()
        .any(|entry| is_concurrent(&entry.rule) != own)
    {
        let why = "limit: expected concurrent for the rule and all its overrides, or for none";
        problems.add(file.limit.span(), why);
    }
    if let Some(field) = file
        .on_expiry
        .as_ref()
        .filter(|field| own && *field.get_ref() == "keep")
    {
        problems.add(
            field.span(),
            "on_expiry: concurrent always releases, as places are for live holders",
        );
    }
    if let Some(field) = file.consistency.as_ref()
        && own
        && config.consistency == Consistency::Near
    {
        problems.add(field.span(), "consistency: concurrent is always exact");
    }
}
