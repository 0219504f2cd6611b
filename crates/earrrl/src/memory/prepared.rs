//! The rules of an engine in memory, and the effect of rule changes on their clients.

use std::boxed::Box;
use std::collections::HashMap;
use std::format;
use std::sync::Arc;
use std::vec::Vec;

use crate::algorithm::Limit;
use crate::clock::Nanos;
use crate::engine::{EngineError, check_name};
use crate::rule::Rule;
use crate::store::table::{KeyHash, sets_for};
use crate::store::{Clients, Next, Older, StateDirectory, StateError, States};
use crate::survey::{Survey, SurveySource};

/// The number of earlier limits of a rule that are known.
const EARLIER: usize = 8;
/// The number of rules in a block.
pub(super) const BLOCK: usize = 64;

/// The rules by their indices, in blocks, so that publishing a change copies one block instead of
/// all rules.
#[derive(Clone, Default)]
pub(super) struct RuleBlocks(pub(super) Vec<Arc<Vec<Prepared>>>);

/// The rules and the shared stores by their names.
#[derive(Default)]
pub(super) struct Registry {
    /// The indices of the rules.
    pub(super) places: HashMap<Arc<str>, usize>,
    pub(super) stores: HashMap<Box<str>, Arc<States>>,
}

/// A rule with the store of its clients.
#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) name: Arc<str>,
    pub(super) rule: Rule,
    pub(super) clients: Arc<Clients>,
    pub(super) capacity: usize,
    /// The number of changes of the limit so far.
    pub(super) version: u32,
    /// The `version` at the last change to another algorithm; 0 if there was none.
    pub(super) algorithm_since: u32,
    /// The limits before this one, the earliest first, each with the instant until which it held.
    pub(super) earlier: Arc<[(Limit, Nanos)]>,
    /// The number of clients that older stores evicted although they were not idle.
    pub(super) displaced: u64,
    /// The older stores in which clients may still be.
    pub(super) older: Option<Arc<Older>>,
}

impl RuleBlocks {
    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<&Prepared> {
        self.0.get(place / BLOCK)?.get(place % BLOCK)
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|block| block.len()).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Prepared> {
        self.0.iter().flat_map(|block| block.iter())
    }

    /// Replaces the rule at an index, or appends it if the index is the next one.
    pub(super) fn set(&mut self, place: usize, prepared: Prepared) {
        if self.0.len() <= place / BLOCK {
            self.0.push(Arc::default());
        }
        if let Some(block) = self.0.get_mut(place / BLOCK).map(Arc::make_mut) {
            match block.get_mut(place % BLOCK) {
                Some(known) => *known = prepared,
                None => block.push(prepared),
            }
        }
    }
}

/// The place of new stores: memory, or the files of a directory, which are swept at `now`.
#[derive(Clone, Copy)]
pub(super) struct StoreLocation<'a> {
    pub(super) directory: Option<&'a StateDirectory>,
    pub(super) now: Nanos,
}

impl Prepared {
    pub(super) fn new(
        name: &str,
        rule: &Rule,
        capacity: usize,
        clients: Arc<Clients>,
    ) -> Result<Self, EngineError> {
        check_name(name)?;
        Ok(Self {
            name: name.into(),
            rule: rule.clone(),
            clients,
            capacity,
            version: 0,
            algorithm_since: 0,
            earlier: Arc::default(),
            displaced: 0,
            older: None,
        })
    }

    /// Returns the rule that replaces this one under the same name, perhaps with another capacity.
    /// Its clients move to the new store that `clients` returns if their states have another meaning
    /// there or the size differs. If the algorithm differs, the clients are not kept.
    pub(super) fn changed(
        &self,
        rule: &Rule,
        capacity: usize,
        now: Nanos,
        clients: impl FnOnce() -> Result<Arc<Clients>, EngineError>,
    ) -> Result<Self, EngineError> {
        let old = self.rule.limit();
        let new = rule.limit();
        let is_in_file = self.clients.file().is_some();
        if is_in_file && new.keeps_states_of(old) {
            let unfit = |error| EngineError::Unavailable(format!("rule {}: {error}", self.name));
            StateError::accept(new).map_err(unfit)?;
        }
        let mut changed = Self {
            rule: rule.clone(),
            capacity,
            ..self.clone()
        };
        if new != old {
            changed.version += 1;
            changed.earlier = self.until(now);
        }
        if !new.is_of_the_algorithm_of(old) {
            changed.algorithm_since = changed.version;
        }
        let is_shared = self.clients.is_shared();
        let as_large = match is_in_file {
            true => sets_for(capacity) == sets_for(self.capacity) && !self.clients.is_succeeded(),
            false => (capacity, rule.max_bytes()) == (self.capacity, self.rule.max_bytes()),
        };
        if is_shared && new == old || !is_shared && new.keeps_states_of(old) && as_large {
            return Ok(changed);
        }
        changed.clients = clients()?;
        if is_shared || changed.clients.is_shared() {
            return Ok(changed);
        }
        changed.displaced = self.displaced();
        if changed.clients.file().is_some() {
            return Ok(changed); // the file knows its earlier generations
        }
        changed.older = new.is_of_the_algorithm_of(old).then(|| {
            let clients = Arc::clone(&self.clients);
            let older = self.older.clone();
            Arc::new(Older {
                limit: *old,
                clients,
                older,
            })
        });
        Ok(changed)
    }

    /// Seals this rule's store if the next version of the rule has another store, so that clients
    /// move there.
    pub(super) fn give_way_to(&self, next: &Self) {
        if next.older.is_some() || next.clients.file().is_some() && self.clients.file().is_some() {
            let rule = next.rule.clone();
            let clients = Arc::clone(&next.clients);
            self.clients.seal(Next { rule, clients });
        }
    }

    /// Returns true if both rules keep their clients in the same store.
    pub(super) fn has_the_store_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.clients, &other.clients)
    }

    /// Returns the rule as another process has changed it, if that made the next generation of the
    /// state file.
    pub(super) fn followed(&self, now: Nanos) -> Option<Self> {
        let Next { rule, clients } = self.clients.follow(&self.rule)?;
        let version = self.version + 1;
        let earlier = self.until(now);
        let rule = rule.clone();
        let clients = Arc::clone(clients);
        let displaced = self.displaced();
        let is_another = !rule.limit().is_of_the_algorithm_of(self.rule.limit());
        let algorithm_since = if is_another {
            version
        } else {
            self.algorithm_since
        };
        Some(Self {
            rule,
            clients,
            version,
            algorithm_since,
            earlier,
            displaced,
            ..self.clone()
        })
    }

    /// Returns this rule's limit, which holds until `now`, after the limits that it had before. The version
    /// that replaces this one at `now` keeps them.
    fn until(&self, now: Nanos) -> Arc<[(Limit, Nanos)]> {
        let from = (self.earlier.len() + 1).saturating_sub(EARLIER);
        self.earlier[from..]
            .iter()
            .copied()
            .chain([(*self.rule.limit(), now)])
            .collect()
    }

    /// Returns the limits from an earlier version to the one before this; `None` if they are not known any
    /// more.
    pub(super) fn limits_since(&self, version: u32) -> Option<&[(Limit, Nanos)]> {
        let changes = self.version.checked_sub(version)? as usize;
        self.earlier.get(self.earlier.len().checked_sub(changes)?..)
    }

    /// Moves a client from an older store, if it is still there, to this rule's store.
    #[inline]
    pub(super) fn settle(&self, key: KeyHash, now: Nanos) {
        if let Some(older) = &self.older {
            older.settle(key, &self.rule, &self.clients, now);
        }
    }

    /// Moves all clients that can be moved. Returns the rule without the older stores that are then
    /// empty, or `None` if no store was emptied.
    pub(super) fn sweep(&self, now: Nanos, empty: &mut Vec<Arc<Clients>>) -> Option<Self> {
        let before = self.older.as_ref()?;
        let older = before.sweep(&self.rule, &self.clients, now, empty);
        let stores = older.as_ref().map_or(0, |older| older.stores());
        (stores < before.stores()).then(|| Self {
            older,
            ..self.clone()
        })
    }

    /// Returns the number of clients that were evicted although they were not idle.
    pub(super) fn displaced(&self) -> u64 {
        self.displaced + self.clients.displaced()
    }

    /// Walks over the clients in this store and the older ones; see [`Survey::take`].
    pub(super) fn survey(&self, now: Nanos, count: usize) -> Survey {
        if self.clients.file().is_some() {
            return Survey::of(&self.clients, &self.rule, now, count);
        }
        let older = std::iter::successors(self.older.as_deref(), |older| older.older.as_deref());
        let older = older.map(|older| SurveySource {
            clients: &older.clients,
            limit: &older.limit,
        });
        let mut sources: Vec<_> = older.collect();
        sources.reverse();
        sources.push(SurveySource {
            clients: &self.clients,
            limit: self.rule.limit(),
        });
        Survey::take(&sources, self.rule.limit(), now, count)
    }

    /// Returns the number of clients in this store and the older ones.
    pub(super) fn len(&self) -> usize {
        self.clients.len() + self.older.as_ref().map_or(0, |older| older.len())
    }
}

impl StoreLocation<'_> {
    /// Returns a store for `capacity` clients of a rule.
    pub(super) fn new_clients(
        &self,
        name: &str,
        rule: &Rule,
        capacity: usize,
    ) -> Result<Arc<Clients>, EngineError> {
        let limit = rule.limit();
        let clients = match self
            .directory
            .filter(|directory| !directory.leaves_in_memory(limit))
        {
            Some(directory) => directory.with_file(name, limit, capacity, |wanted| {
                Clients::open(wanted, |_| self.now).map(|(clients, _)| clients)
            }),
            None => Clients::new(limit, capacity, rule.max_bytes()),
        };
        let unavailable = |error| EngineError::Unavailable(format!("rule {name}: {error}"));
        clients.map(Arc::new).map_err(unavailable)
    }
}
