//! The active rules, in a form that decisions can use without repeated work.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use earrrl::{Cost, EngineError, Outcome, Quota, Rule, RuleId};
use earrrl_redis::Consistency;
use earrrl_tower::ClientAddress;
use siphasher::sip::SipHasher13;

use super::attributes::{Attributes, Reading};
use super::key::{Key, join, split};
use super::known::PlannedLimit;
use super::names::{Directories, Directory};
use crate::config::Config;
use crate::config::attribute::{Condition, KeyPart, PLAIN};
use crate::config::condition_index::ConditionIndex;
use crate::config::rule::{CostSource, Missing, OnError, Override, RuleConfig, action_name};
use crate::engine::Engine;
use crate::metrics::{Outcomes, RuleOutcomes};

/// The greatest number of clients that the table of an override is sized for.
const OVERRIDE_CAPACITY: usize = 100_000;

/// The largest number of names of attributes that are logged because no rule uses them.
const MAX_UNREAD: usize = 32;
/// The largest number of characters of such a name in the log.
const MAX_SHOWN: usize = 64;

/// All active rules. A reload creates a new set and replaces the old one as a whole.
#[derive(Debug)]
pub struct ActiveRules {
    rules: Vec<Arc<ActiveRule>>,
    by_name: HashMap<Box<[u8]>, usize>,
    /// The indexes of rules by the ids of their limits, built when the first reservation is
    /// committed.
    by_id: OnceLock<HashMap<RuleId, usize>>,
    serve_descriptors: bool,
    /// The settings for reading the attributes of requests.
    pub reading: Reading,
    /// The HTTP status that makes a proxy deny a request.
    pub deny_status: u16,
    /// The request headers that rules use, as names of attributes: `header:NAME`.
    pub headers: Vec<String>,
    /// The names of attributes that callers have sent and no rule uses, as far as they are logged.
    unread: Mutex<Vec<String>>,
}

/// Returns the headers that rules use, and the header that identifies clients.
fn headers(rules: &[Arc<ActiveRule>], client: &ClientAddress) -> Vec<String> {
    let named = rules.iter().flat_map(|rule| rule.attributes());
    let named = named.filter(|name| name.starts_with("header:")).map(str::to_owned);
    let mut headers: Vec<String> = named.chain([format!("header:{}", client.header())]).collect();
    headers.sort_unstable();
    headers.dedup();
    headers
}

/// One active rule.
#[derive(Debug)]
pub struct ActiveRule {
    /// The name of the rule.
    pub name: String,
    /// The limit of the rule for clients without an override.
    pub own: PreparedLimit,
    /// The number of active clients that the rule's table is sized for.
    pub capacity: usize,
    /// The verdict on requests that the rule cannot judge; if it is `None`, the engine's policy
    /// applies, which allows them by default.
    pub on_error: Option<OnError>,
    /// The treatment of a request that lacks an attribute of the key.
    pub missing: Missing,
    /// The metrics' counters of the rule's outcomes.
    pub outcomes: Arc<RuleOutcomes>,
    /// The names of the rule's clients that are limited or close to it.
    pub directory: Directory,
    serves_descriptors: bool,
    key: Vec<KeyPart>,
    conditions: Vec<Condition>,
    cost: CostSource,
    min_cost: Cost,
    exempt: Vec<Condition>,
    overrides: Vec<(Vec<Condition>, PreparedLimit)>,
    /// Finds the indexes of matching `overrides` by their conditions.
    index: ConditionIndex,
}

/// A limit that is prepared in the engine.
#[derive(Debug)]
pub struct PreparedLimit {
    /// The id of the limit in the engine.
    pub id: RuleId,
    /// The limit and its action, as an engine's rule.
    pub rule: Rule,
    /// The quota that the `RateLimit-Policy` header reports for the limit.
    pub quota: Quota,
    /// The number of remaining requests below which a client is named.
    pub named_below: u64,
}

impl PreparedLimit {
    fn new(id: RuleId, rule: &Rule) -> Self {
        Self { id, quota: Quota::of(rule.limit()), rule: rule.clone(), named_below: 0 }
    }
}

/// A rule of the configuration, and the limits to prepare for it in the engine: first the rule's
/// own limit, then those of its overrides.
struct PlannedRule<'a> {
    config: &'a RuleConfig,
    capacity: usize,
    limits: Vec<(String, Arc<Rule>, usize, Consistency)>,
}

impl<'a> PlannedRule<'a> {
    fn new(config: &'a RuleConfig, usual: usize, names: &HashSet<&str>) -> Self {
        let capacity = config.capacity.unwrap_or(usual);
        let own = Arc::new(config.rule.clone());
        let mut limits = vec![(config.name.clone(), own, capacity, config.consistency)];
        limits.extend(config.overrides.iter().map(|entry| {
            let conditions: String = entry.conditions.iter().map(Condition::canonical).collect();
            let name = hidden_name(names, &format!("{}\n{conditions}", config.name));
            let capacity = capacity.min(clients_of(&config.key, &entry.conditions));
            (name, Arc::new(entry.rule.clone()), capacity, config.consistency)
        }));
        Self { config, capacity, limits }
    }
}

/// Returns the number of clients that the table of an override is sized for. This is the exact
/// number if the override's conditions list single values for every attribute of the rule's key,
/// and otherwise `OVERRIDE_CAPACITY`.
fn clients_of(key: &[KeyPart], conditions: &[Condition]) -> usize {
    let of_part = |part: &KeyPart| match part {
        KeyPart::Literal(_) => Some(1),
        KeyPart::Attribute(name) => conditions.iter().find(|one| one.attribute == *name)?.count(),
    };
    let mut counts = key.iter().map(of_part);
    let product = counts.try_fold(1_usize, |all, one| all.checked_mul(one?));
    product.unwrap_or(OVERRIDE_CAPACITY).clamp(1, OVERRIDE_CAPACITY)
}

/// Creates an index of overrides by their conditions.
fn index_of(overrides: &[Override]) -> ConditionIndex {
    let mut index = ConditionIndex::default();
    let each = overrides.iter().enumerate();
    each.for_each(|(place, entry)| index.add(place, &entry.conditions));
    index
}

/// The rules of a configuration, before their limits are prepared in the engine.
pub struct RulesPlan<'a> {
    config: &'a Config,
    rules: Vec<PlannedRule<'a>>,
}

impl<'a> RulesPlan<'a> {
    /// Plans the limits of a configuration's rules.
    pub fn new(config: &'a Config) -> Self {
        let names: HashSet<&str> = config.rules.iter().map(|rule| rule.name.as_str()).collect();
        let rules = config.rules.iter().map(|rule| PlannedRule::new(rule, config.capacity, &names));
        Self { config, rules: rules.collect() }
    }

    /// Returns the planned limits, each with its name in the engine and the number of clients to
    /// size its table for.
    pub(super) fn limits(&self) -> impl Iterator<Item = PlannedLimit<'_>> {
        let limits = self.rules.iter().flat_map(|rule| &rule.limits);
        limits.map(|(name, rule, room, how)| (&**name, rule, *room, *how))
    }

    /// Returns the active rules. `ids` holds the engine's ids for `RulesPlan::limits`, in the same
    /// order.
    pub fn finish(
        self,
        ids: &mut impl Iterator<Item = RuleId>,
        kept: (&Outcomes, &Directories),
    ) -> ActiveRules {
        let active = self.rules.iter().map(|rule| ActiveRule::new(rule, ids, kept));
        let rules: Vec<_> = active.flatten().map(Arc::new).collect();
        let by_name =
            rules.iter().enumerate().map(|(index, rule)| (rule.name.as_bytes().into(), index));
        let config = self.config;
        ActiveRules {
            by_name: by_name.collect(),
            by_id: OnceLock::new(),
            serve_descriptors: config.rules.iter().any(RuleConfig::serves_descriptors),
            headers: headers(&rules, &config.client_address),
            rules,
            unread: Mutex::default(),
            deny_status: config.deny_status,
            reading: Reading { client_address: config.client_address.clone(), paths: config.paths },
        }
    }
}

impl ActiveRules {
    /// Returns the rules, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &ActiveRule> {
        self.rules.iter().map(Arc::as_ref)
    }

    /// Returns true if at least one rule applies to Envoy's descriptors.
    pub fn serve_descriptors(&self) -> bool {
        self.serve_descriptors
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns true if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the ids of the limits of all rules, each with its rule's `on_error` setting.
    pub(super) fn verdicts_on_error(&self) -> Vec<(RuleId, Option<OnError>)> {
        let of_rule = |rule: &Arc<ActiveRule>| {
            let on_error = rule.on_error;
            rule.ids().map(move |id| (id, on_error)).collect::<Vec<_>>()
        };
        self.rules.iter().flat_map(of_rule).collect()
    }

    /// Logs each name in `names` of an attribute that no rule uses, once. Such a name is often a
    /// mistake of the caller, and the key of its requests then lacks an attribute.
    pub fn log_unread<'n>(&self, names: impl Iterator<Item = &'n str>) {
        let is_used = |name: &str| {
            PLAIN.contains(&name)
                || self.headers.iter().any(|header| header.eq_ignore_ascii_case(name))
                || self.iter().flat_map(ActiveRule::attributes).any(|used| used == name)
        };
        for name in names.filter(|name| !is_used(name)) {
            let mut logged = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
            if logged.len() < MAX_UNREAD && !logged.iter().any(|known| known == name) {
                logged.push(name.to_owned());
                let name = name.escape_debug().take(MAX_SHOWN).collect::<String>();
                tracing::warn!(name, "a request names an attribute that no rule uses");
            }
        }
    }

    /// Returns the rule at `index` if it has this name. Connections remember the index of the rule
    /// that they used last, and a reload may have changed the order of the rules.
    #[inline]
    pub fn at(&self, index: usize, name: &[u8]) -> Option<&ActiveRule> {
        self.rules.get(index).map(Arc::as_ref).filter(|rule| rule.name.as_bytes() == name)
    }

    /// Returns the index of the rule of this name.
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns the rule and the limit that the engine knows by this id; `None` if the limit was
    /// removed from the configuration.
    pub fn of_id(&self, id: RuleId) -> Option<(&ActiveRule, &PreparedLimit)> {
        let ids = |(place, rule): (usize, &Arc<ActiveRule>)| {
            rule.ids().map(move |id| (id, place)).collect::<Vec<_>>()
        };
        let by_id =
            self.by_id.get_or_init(|| self.rules.iter().enumerate().flat_map(ids).collect());
        let rule = self.rules.get(*by_id.get(&id)?)?;
        Some((rule, rule.limits().find(|limit| limit.id == id)?))
    }

    /// Returns the rule of this name.
    pub fn get(&self, name: &[u8]) -> Option<&ActiveRule> {
        self.rules.get(self.position(name)?).map(Arc::as_ref)
    }
}

impl ActiveRule {
    /// Creates the rule with the ids of its limits; returns `None` if `ids` is empty.
    fn new(
        wanted: &PlannedRule<'_>,
        ids: &mut impl Iterator<Item = RuleId>,
        (outcomes, directories): (&Outcomes, &Directories),
    ) -> Option<Self> {
        let PlannedRule { config, capacity, limits } = wanted;
        let directory = directories.of_rule(&config.name, config.rule.limit());
        let prepare = |(_, rule, ..): &(_, Arc<Rule>, _, _)| {
            let mut prepared = PreparedLimit::new(ids.next()?, rule);
            prepared.named_below = directory.remaining_below(rule.limit());
            Some(prepared)
        };
        let prepared = limits.iter().map_while(prepare);
        let mut prepared = prepared.collect::<Vec<_>>().into_iter();
        Some(Self {
            name: config.name.clone(),
            own: prepared.next()?,
            overrides: (config.overrides.iter().zip(prepared))
                .map(|(entry, prepared)| (entry.conditions.clone(), prepared))
                .collect(),
            index: index_of(&config.overrides),
            outcomes: outcomes.of_rule(&config.name),
            directory,
            capacity: *capacity,
            on_error: config.on_error,
            missing: config.missing,
            serves_descriptors: config.serves_descriptors(),
            key: config.key.clone(),
            conditions: config.conditions.clone(),
            cost: config.cost.clone(),
            min_cost: config.min_cost,
            exempt: config.exempt.clone(),
        })
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

    /// Returns the names of the attributes that the rule uses. A name may occur several times.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        let key = self.key.iter().filter_map(KeyPart::attribute);
        let cost = match &self.cost {
            CostSource::Attribute(name) => Some(name.as_str()),
            CostSource::Fixed(_) | CostSource::ByPath(_) => None,
        };
        let overrides = self.overrides.iter().flat_map(|(conditions, _)| conditions);
        let conditions = self.conditions.iter().chain(&self.exempt).chain(overrides);
        key.chain(cost).chain(conditions.map(|condition| condition.attribute.as_str()))
    }

    /// Creates a rule that a request contains as text.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::prepare`].
    pub fn inline(
        rule: &Rule,
        capacity: usize,
        engine: &Engine,
        outcomes: &Outcomes,
    ) -> Result<Self, EngineError> {
        let text = rule.to_string();
        let name = hidden_name(&HashSet::new(), &text);
        Ok(Self {
            own: PreparedLimit::new(engine.prepare(&name, rule, capacity)?, rule),
            name: text,
            outcomes: outcomes.of_rule("inline"),
            directory: Directory::default(),
            capacity,
            on_error: None,
            missing: Missing::Share,
            serves_descriptors: false,
            key: vec![KeyPart::Attribute("client".to_owned())],
            conditions: Vec::new(),
            cost: CostSource::Fixed(Cost::ONE),
            min_cost: Cost::ONE,
            exempt: Vec::new(),
            overrides: Vec::new(),
            index: ConditionIndex::default(),
        })
    }

    /// Returns true if the rule applies to Envoy's descriptors.
    pub fn serves_descriptors(&self) -> bool {
        self.serves_descriptors
    }

    /// Returns true if requests are denied when the rule cannot be judged.
    pub fn denies_on_error(&self) -> bool {
        self.on_error == Some(OnError::Deny)
    }

    /// Returns the ids of the rule's limits in the engine.
    pub(super) fn ids(&self) -> impl Iterator<Item = RuleId> {
        self.limits().map(|limit| limit.id)
    }

    fn limits(&self) -> impl Iterator<Item = &PreparedLimit> {
        [&self.own].into_iter().chain(self.overrides.iter().map(|(_, limit)| limit))
    }

    /// Returns true if the engine knows a limit of this rule by the id.
    pub fn has_limit(&self, id: RuleId) -> bool {
        self.ids().any(|own| own == id)
    }

    /// Returns the parts of the rule's key, which identifies a client.
    pub fn key_parts(&self) -> &[KeyPart] {
        &self.key
    }

    /// Returns the configuration's name for the rule's action on requests over the limit.
    pub fn action_name(&self) -> &'static str {
        action_name(self.own.rule.action())
    }

    /// Returns true if the rule applies to this request.
    pub fn matches(&self, request: &Attributes<'_>) -> bool {
        self.unmet(request).is_none()
    }

    /// Returns the first condition of the rule that the request does not meet.
    pub fn unmet(&self, request: &Attributes<'_>) -> Option<&Condition> {
        self.conditions.iter().find(|condition| !request.meet(condition))
    }

    /// Returns the request's key under this rule. The key may be longer than the engine can store.
    pub fn key(&self, request: &Attributes<'_>) -> Key {
        join(self.key.iter().map(|part| request.part(part)))
    }

    /// Returns the name of an attribute of the rule's key that the request lacks or whose value is
    /// empty. `key` is the request's key under the rule.
    pub fn lacks(&self, request: &Attributes<'_>, key: &[u8]) -> Option<&str> {
        // A key of one part is that part's value, and a key of several parts is never empty.
        if self.key.len() == 1 && !key.is_empty() {
            return None;
        }
        let empty = self.key.iter().filter(|part| request.part(part).is_empty());
        empty.filter_map(KeyPart::attribute).next()
    }

    /// Returns the request's cost under this rule, from `min_cost` to `max_cost`. A value of the
    /// cost attribute that is not a valid cost counts as `max_cost`: clients may choose the value,
    /// and an error would let their requests pass. If the attribute has several values, the
    /// largest counts.
    pub fn cost(&self, request: &Attributes<'_>) -> Cost {
        match &self.cost {
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
                let cost = |value| str::from_utf8(value).ok()?.parse::<Cost>().ok();
                let named = request.values(name).map(|value| cost(value).unwrap_or(max)).max();
                named.unwrap_or(Cost::ONE).max(self.min_cost).min(max)
            }
        }
    }

    /// Returns the cost of a request that names the rule but does not name a cost.
    pub fn plain_cost(&self) -> Cost {
        if let CostSource::Fixed(cost) = self.cost { cost } else { Cost::ONE }
    }

    /// Returns the limit that applies to this request; `None` if the rule exempts it.
    pub fn limit_for(&self, request: &Attributes<'_>) -> Option<&PreparedLimit> {
        if self.exempt.iter().any(|condition| request.surely_meet(condition)) {
            return None;
        }
        let meets = |conditions: &[Condition]| conditions.iter().all(|c| request.surely_meet(c));
        let value = |name: &str| request.get(name);
        let special = self.index.find(value, |place| meets(&self.overrides[place].0));
        Some(special.map_or(&self.own, |place| &self.overrides[place].1))
    }

    /// Returns the limit for a client of which only the key is known; `None` if the rule exempts
    /// it.
    #[inline]
    pub fn limit_for_key(&self, key: &[u8]) -> Option<&PreparedLimit> {
        if self.exempt.is_empty() && self.overrides.is_empty() {
            return Some(&self.own);
        }
        self.special_limit(key)
    }

    fn special_limit(&self, key: &[u8]) -> Option<&PreparedLimit> {
        let Some(values) = split(key, self.key.len()) else { return Some(&self.own) };
        let value = |attribute: &str| {
            let named = |part: &KeyPart| matches!(part, KeyPart::Attribute(n) if *n == attribute);
            self.key.iter().position(named).map(|place| values[place])
        };
        let meets = |one: &Condition| value(&one.attribute).is_some_and(|value| one.holds(value));
        if self.exempt.iter().any(meets) {
            return None;
        }
        let holds = |place: usize| self.overrides[place].0.iter().all(meets);
        let special = self.index.find(value, holds);
        Some(special.map_or(&self.own, |place| &self.overrides[place].1))
    }
}

/// Returns a name in the engine for a limit that has no name in the configuration. The name
/// depends on `text` only, so that a reload finds the clients' state, and servers of different
/// versions that use one Redis share it.
fn hidden_name(taken: &HashSet<&str>, text: &str) -> String {
    let mut name = format!("hidden-{:016x}", SipHasher13::new().hash(text.as_bytes()));
    while taken.contains(name.as_str()) {
        name.push('_');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_has_room_for_the_clients_that_it_names() {
        for (key, conditions, clients) in [
            (r#""client""#, r#"client = "10.0.0.1""#, 1),
            (r#""client""#, r#"client = ["10.0.0.1", "10.0.0.2"]"#, 2),
            (r#""client""#, r#"client = "10.0.0.0/8""#, OVERRIDE_CAPACITY),
            (r#""user""#, r#"user = "guest-*""#, OVERRIDE_CAPACITY),
            (r#""user""#, r#""attribute:plan" = "pro""#, OVERRIDE_CAPACITY),
            (r#"["user", "path"]"#, r#"user = ["a", "b"], path = ["/c", "/d"]"#, 4),
            (r#"["user", "path"]"#, r#"user = "a""#, OVERRIDE_CAPACITY),
        ] {
            let limit = "limit = \"gcra 1/s burst=1\"";
            let text = format!(
                "[[rule]]\nname = \"r\"\n{limit}\nkey = {key}\n\
                 [[rule.override]]\nkey = {{ {conditions} }}\n{limit}"
            );
            let config = Config::parse(&text, "f").unwrap();
            let plan = RulesPlan::new(&config);
            let rooms: Vec<_> = plan.limits().map(|(_, _, room, _)| room).collect();
            assert_eq!(rooms[1], clients, "{key} {conditions}");
        }
    }

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
        assert_eq!(canonical, "4:plan,4:pro*,;6:client,10:10.0.0.0/8,7:::1/128,;");
        let none = HashSet::new();
        let inline: Rule = "gcra 1/s burst=2".parse().unwrap();
        let names =
            [format!("login\n{canonical}"), inline.to_string()].map(|t| hidden_name(&none, &t));
        assert_eq!(names, ["hidden-4434add2e5438930", "hidden-bf2f302bfb306c5b"]);
    }
}
