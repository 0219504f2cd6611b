//! The overrides that were set at run time, by rule and client, and the changes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::error::AskError;
use super::overrides::MAX_AT_RUN_TIME;
use super::rule::ActiveRule;
use crate::config::rule::Override;

/// The length of the longest key of an override, in bytes of all its parts.
const MAX_KEY_LEN: usize = 1024;
/// The length of the longest limit, in bytes.
const MAX_LIMIT_LEN: usize = 256;

/// The rule and the client of an override, whose parts are the values of the attributes of the rule's key.
pub type OverrideKey = (String, Vec<String>);

/// An override that was set at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTimeOverride {
    /// The name of the rule.
    pub rule: String,
    /// The values of the attributes of the rule's key.
    pub key: Vec<String>,
    /// The limit of the client.
    pub limit: String,
    /// The end of the override, in seconds since the Unix epoch; `None` if it has none.
    pub expires: Option<u64>,
    /// The name of the token that set the override; `None` if the server has no tokens.
    pub by: Option<String>,
    /// The time at which the override was set, in seconds since the Unix epoch.
    pub at: u64,
}

impl RunTimeOverride {
    /// Returns the rule and the client.
    pub fn id(&self) -> OverrideKey {
        (self.rule.clone(), self.key.clone())
    }

    /// Returns the override as the rule's table of overrides has it.
    ///
    /// # Errors
    /// Returns an [`AskError::Invalid`] if the rule cannot have it.
    pub(super) fn read(&self, rule: &ActiveRule) -> Result<Override, AskError> {
        let length: usize = self.key.iter().map(String::len).sum();
        if length > MAX_KEY_LEN {
            let why = format!("key: {length} bytes; at most {MAX_KEY_LEN}");
            return Err(AskError::Invalid(why));
        }
        if self.limit.len() > MAX_LIMIT_LEN {
            let why = format!("limit: {} bytes; at most {MAX_LIMIT_LEN}", self.limit.len());
            return Err(AskError::Invalid(why));
        }
        rule.override_of(&self.key, &self.limit)
            .map_err(AskError::Invalid)
    }

    pub(super) fn has_ended(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// A change of the overrides.
#[derive(Clone, Debug)]
pub(super) enum OverrideChange {
    Set(RunTimeOverride),
    Remove(OverrideKey),
    /// Removes this override, unless it was set again.
    Expire(RunTimeOverride),
}

impl OverrideChange {
    pub(super) fn id(&self) -> OverrideKey {
        match self {
            Self::Set(set) | Self::Expire(set) => set.id(),
            Self::Remove(id) => id.clone(),
        }
    }

    /// Applies the change to a map of overrides.
    pub(super) fn apply(&self, to: &mut BTreeMap<OverrideKey, RunTimeOverride>) {
        match self {
            Self::Set(set) => drop(to.insert(set.id(), set.clone())),
            Self::Remove(id) => drop(to.remove(id)),
            Self::Expire(set) if to.get(&set.id()) == Some(set) => drop(to.remove(&set.id())),
            Self::Expire(_) => {}
        }
    }
}

/// An override, and its form in the table of its rule; `None` if it is not in force, since no rule can have it.
#[derive(Clone, Debug)]
pub(super) struct TableEntry {
    pub(super) set: RunTimeOverride,
    pub(super) active: Option<Override>,
}

/// The overrides that were set at run time.
#[derive(Debug, Default)]
pub(super) struct Table(BTreeMap<OverrideKey, TableEntry>);

impl Table {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, id: &OverrideKey) -> Option<&TableEntry> {
        self.0.get(id)
    }

    /// Returns true if the client's override is gone or another than this one.
    pub(super) fn has_other(&self, set: &RunTimeOverride) -> bool {
        self.get(&set.id()).is_none_or(|entry| entry.set != *set)
    }

    /// Puts an entry in place of the one of this client, or removes that if there is none.
    pub(super) fn replace(&mut self, id: OverrideKey, entry: Option<TableEntry>) {
        match entry {
            Some(entry) => drop(self.0.insert(id, entry)),
            None => drop(self.0.remove(&id)),
        }
    }

    /// Returns an error if there is no place for one more override.
    pub(super) fn check_place(&self, id: &OverrideKey) -> Result<(), AskError> {
        if self.0.len() < MAX_AT_RUN_TIME || self.0.contains_key(id) {
            return Ok(());
        }
        let why = format!(
            "overrides: {MAX_AT_RUN_TIME} are set, and no more may be; delete some, or write them into the file"
        );
        Err(AskError::Invalid(why))
    }

    /// Returns the overrides of a rule that are in force.
    pub(super) fn of_rule<'a>(&'a self, rule: &'a str) -> impl Iterator<Item = &'a Override> {
        let first = Bound::Included((rule.to_owned(), Vec::new()));
        let rest = self.0.range((first, Bound::Unbounded));
        rest.take_while(move |((name, _), _)| name == rule)
            .filter_map(|(_, entry)| entry.active.as_ref())
    }

    /// Returns the overrides behind `after`, in the order of rules and clients.
    pub(super) fn behind<'a>(
        &'a self,
        after: Option<&OverrideKey>,
    ) -> impl Iterator<Item = &'a TableEntry> + use<'a> {
        let first = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
        self.0
            .range((first, Bound::Unbounded))
            .map(|(_, entry)| entry)
    }

    /// Returns the names of the rules that have overrides.
    pub(super) fn rules(&self) -> BTreeSet<String> {
        self.0.keys().map(|(rule, _)| rule.clone()).collect()
    }

    /// Reads the overrides of all rules again, since the rules have changed. Logs those that are no longer in force.
    pub(super) fn read_again<'r>(&mut self, rule: impl Fn(&str) -> Option<&'r ActiveRule>) {
        for entry in self.0.values_mut() {
            let TableEntry { set, active } = entry;
            let read = match rule(&set.rule) {
                Some(rule) => set.read(rule),
                None => Err(AskError::unknown_rule(set.rule.as_bytes())),
            };
            if let Err(error) = &read {
                tracing::warn!(rule = set.rule, %error, "an override is not in force");
            }
            *active = read.ok();
        }
    }

    /// Returns the overrides that have ended by `now`.
    pub(super) fn ended(&self, now: u64) -> Vec<OverrideChange> {
        let sets = self.0.values().map(|entry| &entry.set);
        sets.filter(|set| set.has_ended(now))
            .cloned()
            .map(OverrideChange::Expire)
            .collect()
    }

    /// Returns the changes that make this table equal to `wanted`.
    pub(super) fn changes_to(&self, wanted: Vec<RunTimeOverride>) -> Vec<OverrideChange> {
        let wanted: BTreeMap<_, _> = wanted.into_iter().map(|set| (set.id(), set)).collect();
        let gone = self.0.keys().filter(|id| !wanted.contains_key(id));
        let gone = gone.cloned().map(OverrideChange::Remove);
        let gone: Vec<_> = gone.collect();
        let set = wanted
            .into_values()
            .filter(|set| self.has_other(set))
            .map(OverrideChange::Set);
        gone.into_iter().chain(set).collect()
    }
}
