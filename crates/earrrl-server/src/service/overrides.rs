//! The overrides of a rule: other limits for some of its clients.
//!
//! A rule may have a hundred thousand overrides, mostly with few different limits. Each limit is prepared
//! once. What an override adds is its entry in the index of conditions and the number of its limit.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use earrrl::{Rule, RuleId};
use earrrl_tower::Alternative;
use siphasher::sip::SipHasher13;

use super::key::Key;
use super::limit::{PreparedLimit, hidden_name};
use crate::config::attribute::{Condition, KeyPart};
use crate::config::condition_index::ConditionIndex;
use crate::config::rule::{Override, RuleConfig};
use crate::engine::{Engine, PlannedLimit};

/// The greatest number of clients that the table of an override is sized for.
const MAX_CAPACITY: usize = 100_000;
/// The greatest number of overrides that are set at run time.
pub(super) const MAX_AT_RUN_TIME: usize = 10_000;

/// The active overrides of a rule: those of the configuration, or those that were set at run time.
#[derive(Debug)]
pub(super) struct Overrides {
    limits: Vec<PreparedLimit>,
    /// The index in `limits` of the limit of each override.
    limit_of: Vec<u32>,
    /// Finds overrides by their conditions.
    index: ConditionIndex,
    /// The properties of the overrides that the index alone does not determine.
    rest: HashMap<usize, Rest>,
    /// True if the limits share one store.
    is_shared: bool,
    /// The overrides of the configuration behind those that were set at run time.
    next: Option<Arc<Self>>,
}

/// An override's conditions that the index does not check, and the salt of its clients' keys.
#[derive(Debug)]
struct Rest {
    conditions: Box<[Condition]>,
    salt: Option<Salt>,
}

/// A number that tells an override's clients apart from those of other overrides with the same keys. The
/// overrides of a rule share one store of states, and where an override depends on more than the key, one
/// key can be under several overrides.
type Salt = u64;

/// An override that applies to a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Applied<'a> {
    pub(super) limit: &'a PreparedLimit,
    salt: Option<Salt>,
}

impl<'a> Applied<'a> {
    /// Returns the limit of a rule for clients without an override.
    pub(super) fn own(limit: &'a PreparedLimit) -> Self {
        Self { limit, salt: None }
    }

    /// Returns the key under which the engine keeps the state of the client with this key.
    pub(super) fn stored_key(&self, mut key: Key) -> Key {
        if let Some(salt) = self.salt {
            key.extend_from_slice(&salt.to_le_bytes());
        }
        key
    }
}

impl Overrides {
    /// Returns these overrides with those of the configuration behind them; `None` if there are neither.
    pub(super) fn before(mut self, next: Option<Arc<Self>>) -> Option<Arc<Self>> {
        if self.limit_of.is_empty() {
            return next;
        }
        self.next = next;
        Some(Arc::new(self))
    }

    /// Returns these overrides and those behind them.
    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |overrides| overrides.next.as_deref())
    }

    /// Returns the different limits of the overrides.
    pub(super) fn limits(&self) -> impl Iterator<Item = &PreparedLimit> {
        self.chain().flat_map(|overrides| &overrides.limits)
    }

    /// Returns one limit for each store of the overrides' clients.
    pub(super) fn stores(&self) -> impl Iterator<Item = &PreparedLimit> {
        self.chain().flat_map(
            |Self {
                 limits, is_shared, ..
             }| {
                let first = limits.get(..1).filter(|_| *is_shared);
                first.unwrap_or(limits)
            },
        )
    }

    /// Returns the names of the attributes that the overrides use. A name may occur several times.
    pub(super) fn attributes(&self) -> impl Iterator<Item = &str> {
        self.chain().flat_map(|overrides| {
            let conditions = overrides.rest.values().flat_map(|rest| &rest.conditions);
            let named = conditions.map(|condition| condition.attribute.as_str());
            overrides.index.attributes().chain(named)
        })
    }

    /// Returns the first override that applies, given the values of attributes and a test of single
    /// conditions.
    pub(super) fn find<'v>(
        &self,
        value: impl Fn(&str) -> Option<&'v [u8]>,
        meets: impl Fn(&Condition) -> bool,
    ) -> Option<Applied<'_>> {
        self.chain()
            .find_map(|overrides| overrides.find_own(&value, &meets))
    }

    fn find_own<'v>(
        &self,
        value: impl Fn(&str) -> Option<&'v [u8]>,
        meets: impl Fn(&Condition) -> bool,
    ) -> Option<Applied<'_>> {
        let holds = |place: usize| match self.rest(place) {
            Some(rest) => rest.conditions.iter().all(&meets),
            None => true,
        };
        let place = self.index.find(value, holds)?;
        let limit = self.limits.get(*self.limit_of.get(place)? as usize)?;
        Some(Applied {
            limit,
            salt: self.rest(place).and_then(|rest| rest.salt),
        })
    }

    fn rest(&self, place: usize) -> Option<&Rest> {
        if self.rest.is_empty() {
            None
        } else {
            self.rest.get(&place)
        }
    }
}

/// The overrides of a rule, before their limits are prepared in the engine.
pub(super) struct OverridesPlan<'a> {
    key: &'a [KeyPart],
    entries: Vec<&'a Override>,
    /// True if the overrides share one store. An engine over Redis has records of its own for each.
    is_shared: bool,
    /// The different limits, to prepare in the engine.
    pub(super) limits: Vec<PlannedLimit>,
    limit_of: Vec<u32>,
}

impl<'a> OverridesPlan<'a> {
    /// Plans the overrides of the configuration.
    pub(super) fn new(
        rule: &'a RuleConfig,
        capacity: usize,
        is_shared: bool,
        names: &HashSet<&str>,
    ) -> Self {
        let entries = rule.overrides.iter().collect();
        let stored = (capacity, is_shared, is_shared);
        Self::stored_as(&rule.name, rule, entries, stored, names)
    }

    /// Plans overrides that were set at run time. They have stores of their own, since a limit that is prepared
    /// again under the same name would change that of an override of the configuration. State files are one for
    /// each limit, not for each client.
    pub(super) fn at_run_time(
        rule: &'a RuleConfig,
        entries: Vec<&'a Override>,
        engine: &Engine,
        names: &HashSet<&str>,
    ) -> Self {
        let store = format!("{}\nat run time", rule.name);
        let is_shared = engine.shares_stores();
        let by_limit = is_shared || engine.has_files();
        let clients = if by_limit { MAX_AT_RUN_TIME } else { 1 };
        let stored = (clients, is_shared, by_limit);
        let mut plan = Self::stored_as(&store, rule, entries, stored, names);
        for limit in &mut plan.limits {
            limit.capacity = clients;
        }
        plan
    }

    /// Plans overrides for a number of clients, in the store of this name if it is shared, with one limit for all
    /// overrides of the same limit if `by_limit` is true.
    fn stored_as(
        store: &str,
        rule: &'a RuleConfig,
        entries: Vec<&'a Override>,
        (capacity, is_shared, by_limit): (usize, bool, bool),
        names: &HashSet<&str>,
    ) -> Self {
        let shared: Arc<str> = store.into();
        let mut limits = Vec::new();
        let mut known: HashMap<String, u32> = HashMap::new();
        let mut limit_of = Vec::with_capacity(entries.len());
        for entry in &entries {
            let text = if by_limit {
                format!("limit {}", entry.rule)
            } else {
                canonical(entry)
            };
            let limit = *known.entry(text).or_insert_with_key(|text| {
                let name = hidden_name(names, &format!("{store}\n{text}"));
                let clients = if is_shared {
                    capacity
                } else {
                    clients_of(&rule.key, entry)
                };
                limits.push(PlannedLimit {
                    name: name.into(),
                    rule: Arc::new(entry.rule.clone()),
                    capacity: capacity.min(clients),
                    consistency: rule.consistency,
                    store: is_shared.then(|| Arc::clone(&shared)),
                });
                limits.len() as u32 - 1
            });
            limit_of.push(limit);
        }
        Self {
            key: &rule.key,
            entries,
            is_shared,
            limits,
            limit_of,
        }
    }

    /// Returns the active overrides. `ids` holds the engine's ids for [`OverridesPlan::limits`], in
    /// the same order. `named_below` returns [`PreparedLimit::named_below`] of a limit.
    pub(super) fn finish(
        &self,
        ids: &mut impl Iterator<Item = RuleId>,
        named_below: impl Fn(&Rule) -> u64,
    ) -> Overrides {
        let prepare = |(limit, id): (&PlannedLimit, RuleId)| {
            PreparedLimit::new(id, &limit.rule, named_below(&limit.rule))
        };
        let limits = self.limits.iter().zip(ids).map(prepare).collect();
        let mut index = ConditionIndex::default();
        let mut rest = HashMap::new();
        for (place, entry) in self.entries.iter().enumerate() {
            let checked = index.add(place, &entry.conditions);
            let conditions = unchecked(&entry.conditions, checked);
            let salt = self.salt(entry);
            if !conditions.is_empty() || salt.is_some() {
                rest.insert(place, Rest { conditions, salt });
            }
        }
        Overrides {
            limits,
            limit_of: self.limit_of.clone(),
            index,
            rest,
            is_shared: self.is_shared,
            next: None,
        }
    }

    fn salt(&self, entry: &Override) -> Option<Salt> {
        let is_of_key = |condition: &Condition| {
            let mut names = self.key.iter().flat_map(KeyPart::attributes);
            names.any(|name| name == condition.attribute)
        };
        let is_salted = self.is_shared && !entry.conditions.iter().all(is_of_key);
        is_salted.then(|| SipHasher13::new().hash(canonical(entry).as_bytes()))
    }
}

/// Returns the conditions that must be checked although the index found the override by the condition
/// at the index `checked`. A path must meet its condition in all of its readings, of which the index
/// knows one.
fn unchecked(conditions: &[Condition], checked: Option<usize>) -> Box<[Condition]> {
    let each = conditions.iter().enumerate();
    let left = each.filter(|(nth, one)| checked != Some(*nth) || one.attribute == "path");
    left.map(|(_, condition)| condition.clone()).collect()
}

/// Returns the number of clients that the table of an override is sized for if it does not share one.
/// This is the exact number if the override's conditions list single values for every attribute of
/// the rule's key, and otherwise `MAX_CAPACITY`.
fn clients_of(key: &[KeyPart], entry: &Override) -> usize {
    let of_part = |part: &KeyPart| match part.alternatives() {
        [Alternative::Literal(_)] => Some(1),
        _ => {
            let is_on = |one: &&Condition| part.attributes().any(|name| one.attribute == name);
            entry.conditions.iter().find(is_on)?.count()
        }
    };
    let mut counts = key.iter().map(of_part);
    let product = counts.try_fold(1_usize, |all, one| all.checked_mul(one?));
    product.unwrap_or(MAX_CAPACITY).clamp(1, MAX_CAPACITY)
}

/// Returns a text that identifies an override among those of its rule.
fn canonical(entry: &Override) -> String {
    entry.conditions.iter().map(Condition::canonical).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn an_override_that_shares_no_table_has_room_for_the_clients_that_it_names() {
        for (key, conditions, clients) in [
            (r#""client""#, r#"client = "10.0.0.1""#, 1),
            (r#""client""#, r#"client = ["10.0.0.1", "10.0.0.2"]"#, 2),
            (r#""client""#, r#"client = "10.0.0.0/8""#, MAX_CAPACITY),
            (r#""user""#, r#"user = "guest-*""#, MAX_CAPACITY),
            (r#""user""#, r#""attribute:plan" = "pro""#, MAX_CAPACITY),
            (
                r#"["user", "path"]"#,
                r#"user = ["a", "b"], path = ["/c", "/d"]"#,
                4,
            ),
            (r#"["user", "path"]"#, r#"user = "a""#, MAX_CAPACITY),
        ] {
            let limit = "limit = \"gcra 1/s burst=1\"";
            let text = format!(
                "[[rule]]\nname = \"r\"\n{limit}\nkey = {key}\n\
                 [[rule.override]]\nkey = {{ {conditions} }}\n{limit}"
            );
            let config = Config::parse(&text, "f").unwrap();
            let plan = OverridesPlan::new(&config.rules[0], 1_000_000, false, &HashSet::new());
            let capacity = plan.limits[0].capacity;
            assert_eq!(capacity, clients, "{key} {conditions}");
        }
    }

    #[test]
    fn overrides_that_share_a_store_have_each_limit_once() {
        let rule = "[[rule]]\nname = \"r\"\nlimit = \"gcra 1/s burst=1\"\nkey = \"user\"\n";
        let one = |nth: usize| {
            let limit = 2 + nth % 3;
            format!(
                "[[rule.override]]\nkey = {{ user = \"u{nth}\" }}\nlimit = \"gcra {limit}/s burst=9\"\n"
            )
        };
        let text = format!("{rule}{}", (0..50).map(one).collect::<String>());
        let config = Config::parse(&text, "f").unwrap();
        let plan = OverridesPlan::new(&config.rules[0], 7, true, &HashSet::new());
        let limits: Vec<_> = plan
            .limits
            .iter()
            .map(|limit| (limit.rule.to_string(), limit.capacity))
            .collect();
        let limit = |rate: u64| (format!("gcra {rate}/s burst=9"), 7);
        assert_eq!(limits, [limit(2), limit(3), limit(4)]);
        assert!(
            plan.limits
                .iter()
                .all(|limit| limit.store.as_deref() == Some("r"))
        );
    }
}
