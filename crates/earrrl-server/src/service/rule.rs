//! One active rule, in a form that decisions can use without repeated work.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use earrrl::{Cost, EngineError, Outcome, Rule, RuleId};
use earrrl_redis::Consistency;
use earrrl_tower::Alternative;

use super::attributes::Attributes;
use super::key::{Key, join, split};
use super::limit::{PreparedLimit, hidden_name};
use super::names::{Directories, Directory};
use super::overrides::{Applied, Overrides, OverridesPlan};
use crate::config::attribute::{Condition, KeyPart};
use crate::config::rule::{CostSource, OnError, Override, RuleConfig, action_name};
use crate::engine::{Engine, PlannedLimit};
use crate::metrics::{Outcomes, RuleOutcomes};

/// The properties of a rule that its answers, its counters and the lists of its clients need. All limits in
/// Envoy's format have one in common.
#[derive(Clone, Debug)]
pub struct NamedRule {
    /// The name of the rule.
    pub name: String,
    /// The name that the rules for all levels share, if this rule is for a level.
    pub group: Option<String>,
    /// The verdict on requests that the rule cannot judge; if it is `None`, the engine's policy
    /// applies, which allows them by default.
    pub on_error: Option<OnError>,
    /// The name of the unit of the rule's costs, with which answers show fractions of what remains.
    pub unit: Option<Arc<str>>,
    /// The metrics' counters of the rule's outcomes.
    pub outcomes: Arc<RuleOutcomes>,
    /// The names of the rule's clients that are limited or close to it.
    pub directory: Directory,
}

impl NamedRule {
    fn new(config: &RuleConfig, outcomes: Arc<RuleOutcomes>, directory: Directory) -> Self {
        Self {
            name: config.name.clone(),
            group: config.group.clone(),
            on_error: config.on_error,
            unit: config.unit.clone(),
            outcomes,
            directory,
        }
    }

    /// Counts the outcome of a request under this rule. An outcome that is only observed is also
    /// logged.
    #[inline]
    pub fn count(&self, outcome: Outcome, key: &[u8]) {
        self.outcomes.count(outcome);
        if outcome == Outcome::Observe {
            self.outcomes.log_observed(&self.name, key);
        }
    }

    /// Returns true if requests are denied when the rule cannot be judged.
    pub fn denies_on_error(&self) -> bool {
        self.on_error == Some(OnError::Deny)
    }
}

/// One active rule.
#[derive(Clone, Debug)]
pub struct ActiveRule {
    named: NamedRule,
    /// The rule as configured, without its overrides.
    pub config: Arc<RuleConfig>,
    /// The limit of the rule for clients without an override.
    pub own: PreparedLimit,
    /// The number of active clients that the rule's table is sized for.
    pub capacity: usize,
    /// The overrides in force: those that were set at run time, and behind them those of the configuration.
    overrides: Option<Arc<Overrides>>,
    configured_overrides: Option<Arc<Overrides>>,
}

impl Deref for ActiveRule {
    type Target = NamedRule;

    fn deref(&self) -> &NamedRule {
        &self.named
    }
}

/// The records of rules that stay across reloads.
#[derive(Clone, Copy)]
pub struct RuleRecords<'a> {
    /// The metrics' counters of outcomes.
    pub outcomes: &'a Outcomes,
    /// The names of clients.
    pub directories: &'a Directories,
}

/// A rule of the configuration, and the limits to prepare for it in the engine: first the rule's
/// own limit, then those of its overrides.
pub(super) struct PlannedRule<'a> {
    config: &'a RuleConfig,
    own: PlannedLimit,
    overrides: OverridesPlan<'a>,
}

impl<'a> PlannedRule<'a> {
    pub(super) fn new(
        config: &'a RuleConfig,
        usual: usize,
        is_shared: bool,
        names: &HashSet<&str>,
    ) -> Self {
        let capacity = config.capacity.unwrap_or(usual);
        let overrides = OverridesPlan::new(config, capacity, is_shared, names);
        let own = PlannedLimit {
            name: config.name.as_str().into(),
            rule: Arc::new(config.rule.clone()),
            capacity,
            consistency: config.consistency,
            store: None,
        };
        Self {
            config,
            own,
            overrides,
        }
    }

    pub(super) fn limits(&self) -> impl Iterator<Item = &PlannedLimit> {
        std::iter::once(&self.own).chain(&self.overrides.limits)
    }
}

impl ActiveRule {
    /// Creates the rule with the ids of its limits; returns `None` if `ids` is empty.
    pub(super) fn new(
        wanted: &PlannedRule<'_>,
        ids: &mut impl Iterator<Item = RuleId>,
        kept: RuleRecords<'_>,
    ) -> Option<Self> {
        let PlannedRule {
            config,
            own,
            overrides,
        } = wanted;
        let RuleRecords {
            outcomes,
            directories,
        } = kept;
        let directory = directories.of_rule(&config.name, config.rule.limit());
        let named_below = |rule: &Rule| directory.remaining_below(rule.limit());
        let own_limit = PreparedLimit::new(ids.next()?, &own.rule, named_below(&own.rule));
        let overrides = overrides.finish(ids, named_below).before(None);
        let named = NamedRule::new(config, outcomes.of_rule(&config.name), directory);
        Some(Self {
            own: own_limit,
            configured_overrides: overrides.clone(),
            overrides,
            named,
            capacity: own.capacity,
            config: Arc::new(RuleConfig {
                overrides: Arc::default(),
                ..(*config).clone()
            }),
        })
    }

    /// Returns the names of the attributes that the rule uses. A name may occur several times.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        let cost = match &self.config.cost {
            CostSource::Attribute(name) => Some(name.as_str()),
            CostSource::ByPath(_) => Some("path"),
            CostSource::Fixed(_) => None,
        };
        self.deciding_attributes().chain(cost)
    }

    /// Returns the names of the attributes that decide whether the rule applies, under which limit, and to
    /// which client. A name may occur several times.
    pub fn deciding_attributes(&self) -> impl Iterator<Item = &str> {
        let key = self.config.key.iter().flat_map(KeyPart::attributes);
        let conditions = self.config.conditions.iter().chain(&self.config.exempt);
        let conditions = conditions.map(|condition| condition.attribute.as_str());
        let overrides = self.configured_overrides.iter();
        key.chain(conditions)
            .chain(overrides.flat_map(|one| one.attributes()))
    }

    /// Creates a rule that a request contains as text.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::prepare`].
    pub fn inline(
        rule: Rule,
        capacity: usize,
        engine: &Engine,
        outcomes: &Outcomes,
    ) -> Result<Self, EngineError> {
        let config = RuleConfig::of_text(rule);
        let name = hidden_name(&HashSet::new(), &config.name);
        let id = engine.prepare(&name, &config.rule, capacity)?;
        Ok(Self {
            own: PreparedLimit::new(id, &config.rule, 0),
            named: NamedRule::new(&config, outcomes.of_rule("inline"), Directory::default()),
            config: Arc::new(config),
            capacity,
            overrides: None,
            configured_overrides: None,
        })
    }

    /// Returns the override for the client with these values of the key's attributes.
    ///
    /// # Errors
    /// Returns a sentence about the mistake in the values or in the limit.
    pub(super) fn override_of(&self, values: &[String], limit: &str) -> Result<Override, String> {
        let RuleConfig {
            terms, key, exempt, ..
        } = &*self.config;
        let found = Override::of_client(terms, key, values, limit)?;
        if found.is_exempt_by(exempt) {
            return Err(
                "key: these are exempt from the rule, so the override never applies".into(),
            );
        }
        if found.rule.limit().is_concurrent() != self.own.rule.limit().is_concurrent() {
            return Err(
                "limit: expected concurrent for the rule and all its overrides, or for none".into(),
            );
        }
        if self.config.consistency == Consistency::Near {
            let near = earrrl_redis::check_near(&found.rule);
            near.map_err(|error| format!("limit: {error}"))?;
        }
        Ok(found)
    }

    /// Returns the key of the client with these values of the key's attributes.
    pub(super) fn key_of(&self, values: &[String]) -> Key {
        let mut values = values.iter().map(String::as_bytes);
        let parts = self
            .config
            .key
            .iter()
            .map(|part| match part.attributes().next() {
                Some(_) => Cow::Borrowed(values.next().unwrap_or_default()),
                None => {
                    let literal = part.value(|one| match one {
                        Alternative::Literal(text) => Some(Cow::Borrowed(text.as_bytes())),
                        _ => None,
                    });
                    literal.0
                }
            });
        join(parts.collect::<Vec<_>>().into_iter())
    }

    /// Returns the rule with the overrides of this plan, which were set at run time. `ids` holds the engine's ids
    /// for the plan's limits.
    pub(super) fn with_overrides(&self, plan: &OverridesPlan<'_>, ids: Vec<RuleId>) -> Self {
        let named_below = |rule: &Rule| self.directory.remaining_below(rule.limit());
        let overrides = plan.finish(&mut ids.into_iter(), named_below);
        let mut changed = self.clone();
        changed.overrides = overrides.before(self.configured_overrides.clone());
        changed
    }

    /// Returns the ids of the rule's limits in the engine.
    pub(super) fn ids(&self) -> impl Iterator<Item = RuleId> {
        self.limits().map(|limit| limit.id)
    }

    /// Returns the ids of one limit for each store of the rule's clients.
    pub(super) fn stores(&self) -> impl Iterator<Item = RuleId> {
        [&self.own]
            .into_iter()
            .chain(self.overrides.iter().flat_map(|one| one.stores()))
            .map(|limit| limit.id)
    }

    pub(super) fn limits(&self) -> impl Iterator<Item = &PreparedLimit> {
        let overrides = self.overrides.iter().flat_map(|one| one.limits());
        [&self.own].into_iter().chain(overrides)
    }

    /// Returns true if the engine knows a limit of this rule by the id.
    pub fn has_limit(&self, id: RuleId) -> bool {
        self.ids().any(|own| own == id)
    }

    /// Returns the configuration's name for the rule's action on requests over the limit.
    pub fn action_name(&self) -> &'static str {
        action_name(self.own.rule.action())
    }

    /// Returns false if only reservations apply the rule, and no checks.
    pub fn is_checked(&self) -> bool {
        !self.own.rule.limit().is_concurrent()
    }

    /// Returns true if the rule applies to this request.
    pub fn matches(&self, request: &Attributes<'_>) -> bool {
        self.unmet(request).is_none()
    }

    /// Returns the first condition of the rule that the request does not meet.
    pub fn unmet(&self, request: &Attributes<'_>) -> Option<&Condition> {
        self.config
            .conditions
            .iter()
            .find(|condition| !request.meet(condition))
    }

    /// Returns the request's key under this rule. The key may be longer than the engine can store.
    pub fn key(&self, request: &Attributes<'_>) -> Key {
        let part = |part| request.part(part, &self.config.conditions).0;
        join(self.config.key.iter().map(part))
    }

    /// Returns the first part of the rule's key of which the request has no attribute, or none that is not empty. `key`
    /// is the request's key under the rule.
    pub fn lacks(&self, request: &Attributes<'_>, key: &[u8]) -> Option<&KeyPart> {
        // A key of one part is that part's value, and a key of several parts is never empty.
        if self.config.key.len() == 1 && !key.is_empty() {
            return None;
        }
        self.config
            .key
            .iter()
            .find(|part| self.lacks_part(request, part))
    }

    /// Returns true if the request has no attribute of a part of the rule's key.
    pub fn lacks_part(&self, request: &Attributes<'_>, part: &KeyPart) -> bool {
        request.part(part, &self.config.conditions).1.is_none()
    }

    /// Returns true if the key has an attribute only as an alternative to the one that tells the request's client apart.
    /// The limits of clients that this attribute tells apart are not for the request then.
    fn passes_over(&self, name: &str, request: &Attributes<'_>) -> bool {
        let names = |part: &&KeyPart| part.attributes().any(|own| own == name);
        let mut parts = self.config.key.iter().filter(names).peekable();
        let made_of = |part| request.part(part, &self.config.conditions).1?.attribute();
        parts.peek().is_some()
            && parts.all(|part| part.alternatives().len() > 1 && made_of(part) != Some(name))
    }

    /// Returns the request's cost under this rule, from `min_cost` to `max_cost`. A value of the
    /// cost attribute that is not a valid cost counts as `max_cost`: clients may choose the value,
    /// and an error would let their requests pass. If the attribute has several values, the
    /// largest counts.
    pub fn cost(&self, request: &Attributes<'_>) -> Cost {
        match &self.config.cost {
            CostSource::Fixed(cost) => *cost,
            CostSource::ByPath(costs) => {
                let cost = |path: &[u8]| {
                    let found = costs.iter().find(|(condition, _)| condition.holds(path));
                    found.map_or(Cost::ONE, |(_, cost)| *cost)
                };
                // If the path can be read in several ways, the reading with the highest cost
                // counts.
                let most = match request.paths() {
                    Some(paths) => paths.map(cost).max(),
                    None => costs.iter().map(|(_, cost)| *cost).max(),
                };
                most.unwrap_or(Cost::ONE)
            }
            CostSource::Attribute(name) => {
                let max = self.own.rule.max_cost();
                let named = request
                    .values(name)
                    .map(|value| parse_cost(value).unwrap_or(max))
                    .max();
                named.unwrap_or_default().max(self.config.min_cost).min(max)
            }
        }
    }

    /// Returns true if the request states a cost that is none.
    pub(super) fn has_invalid_cost(&self, request: &Attributes<'_>) -> bool {
        let CostSource::Attribute(name) = &self.config.cost else {
            return false;
        };
        request
            .values(name)
            .any(|value| parse_cost(value).is_none())
    }

    /// Returns the cost of a request that names the rule but does not name a cost.
    pub fn plain_cost(&self) -> Cost {
        if let CostSource::Fixed(cost) = self.config.cost {
            cost
        } else {
            Cost::ONE
        }
    }

    /// Returns the limit that applies to this request; `None` if the rule exempts it.
    pub fn limit_for(&self, request: &Attributes<'_>) -> Option<&PreparedLimit> {
        self.applied_to(request).map(|applied| applied.limit)
    }

    /// Returns the limit that applies to this request, with the form of its clients' keys; `None` if
    /// the rule exempts the request.
    pub(super) fn applied_to(&self, request: &Attributes<'_>) -> Option<Applied<'_>> {
        if self
            .config
            .exempt
            .iter()
            .any(|condition| request.surely_meet(condition))
        {
            return None;
        }
        let has = |name: &str| !self.passes_over(name, request);
        let meets = |one: &Condition| has(&one.attribute) && request.surely_meet(one);
        let value = |name: &str| has(name).then(|| request.value(name));
        let overrides = self.overrides.as_deref();
        let special = overrides.and_then(|all| all.find(value, meets));
        Some(special.unwrap_or(Applied::own(&self.own)))
    }

    /// Returns the limit for a client of which only the key is known; `None` if the rule exempts
    /// it.
    #[inline]
    pub fn limit_for_key(&self, key: &[u8]) -> Option<&PreparedLimit> {
        if self.config.exempt.is_empty() && self.overrides.is_none() {
            return Some(&self.own);
        }
        self.special_limit(key)
    }

    fn special_limit(&self, key: &[u8]) -> Option<&PreparedLimit> {
        let Some(values) = split(key, self.config.key.len()) else {
            return Some(&self.own);
        };
        let value = |attribute: &str| {
            let mut parts = self.config.key.iter().zip(&values);
            parts.find_map(|(part, value)| {
                let (one, value) = part.split(value)?;
                (one.attribute() == Some(attribute)).then_some(value)
            })
        };
        let meets = |one: &Condition| value(&one.attribute).is_some_and(|value| one.holds(value));
        if self.config.exempt.iter().any(meets) {
            return None;
        }
        // An override that depends on the key alone has no salt, and the others do not apply.
        let overrides = self.overrides.as_deref();
        let special = overrides.and_then(|all| all.find(value, meets));
        Some(special.map_or(&self.own, |applied| applied.limit))
    }
}

/// Parses the cost that a request states.
fn parse_cost(value: &[u8]) -> Option<Cost> {
    str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// Servers of other versions use these names in the same Redis.
    #[test]
    fn hidden_names_never_change() {
        let text = r#"
            [[rule]]
            name = "login"
            limit = "gcra 1/s burst=2"
            [[rule.override]]
            key = { client = ["10.0.0.0/8", "::1"], "attribute:plan" = "pro*" }
            limit = "gcra 9/s burst=9"
        "#;
        let config = Config::parse(text, "f").unwrap();
        let conditions = &config.rules[0].overrides[0].conditions;
        let canonical: String = conditions.iter().map(Condition::canonical).collect();
        assert_eq!(
            canonical,
            "4:plan,4:pro*,;6:client,10:10.0.0.0/8,7:::1/128,;"
        );
        let none = HashSet::new();
        let inline: Rule = "gcra 1/s burst=2".parse().unwrap();
        let names =
            [format!("login\n{canonical}"), inline.to_string()].map(|t| hidden_name(&none, &t));
        assert_eq!(
            names,
            ["hidden-4434add2e5438930", "hidden-bf2f302bfb306c5b"]
        );
    }
}
