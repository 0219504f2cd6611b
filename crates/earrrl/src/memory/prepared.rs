//! The rules of an engine in memory, and the effect of a changed rule on its clients.

use std::boxed::Box;
use std::collections::HashMap;
use std::format;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

use super::notice::Notice;
use crate::clock::Nanos;
use crate::engine::{EngineError, check_name};
use crate::holds::hash_of_name;
use crate::rule::Rule;
use crate::store::table::sets_for;
use crate::store::{Clients, StateDirectory, States};

/// The rules by their indices. Publishing a change copies the list, and shares the rules that stay.
pub(super) type Rules = [Arc<Prepared>];

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
    /// The hash of the name, by which reservations in files know the rule.
    pub(super) name_hash: u64,
    /// The number of times that the rule has begun afresh.
    pub(super) version: u32,
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
            name_hash: hash_of_name(name),
            version: 0,
        })
    }

    /// Returns the rule that replaces this one under the same name. Its clients begin afresh in the new store
    /// that `clients` returns if their states have another meaning there.
    pub(super) fn changed(
        &self,
        rule: &Rule,
        capacity: usize,
        clients: impl FnOnce() -> Result<Arc<Clients>, EngineError>,
    ) -> Result<Self, EngineError> {
        let old = self.rule.limit();
        let new = rule.limit();
        let mut changed = Self {
            rule: rule.clone(),
            capacity,
            ..self.clone()
        };
        let is_shared = self.clients.is_shared();
        let is_kept = self.clients.keeps(old, new);
        // Where rules share a store, each has a view of its own, with its limit.
        if is_kept && !(is_shared && new != old) {
            return Ok(changed);
        }
        changed.clients = clients()?;
        changed.version += u32::from(!(is_kept && changed.clients.is_shared()));
        Ok(changed)
    }

    /// Returns true if the rule has another capacity than its table in memory, which has no live client at `now`.
    pub(super) fn waits_for_size(&self, now: Nanos) -> bool {
        let table = self
            .clients
            .table()
            .filter(|_| self.clients.file().is_none());
        let limit = self.rule.limit();
        table.is_some_and(|table| {
            let is_live = |word| limit.rank(word, now) > limit.idle(now);
            sets_for(table.capacity()) != sets_for(self.capacity)
                && !table.iter().any(|client| is_live(client.word))
        })
    }

    /// Returns what the users of the rule should know after it was prepared, in place of `before` if it was
    /// known already.
    pub(super) fn notice(&self, before: Option<&Self>) -> Option<Notice> {
        let rule = String::from(&*self.name);
        let replaced = before.filter(|before| before.version != self.version);
        let former = replaced.map(|before| before.rule.limit().text());
        let file = self.clients.file();
        if let Some(before) = former.or_else(|| file.filter(|_| before.is_none())?.before.clone()) {
            return Some(Notice::Afresh { rule, before });
        }
        let table = self.clients.table()?;
        let capacity = table.capacity();
        if sets_for(capacity) == sets_for(self.capacity) {
            return None;
        }
        Some(Notice::Capacity {
            rule,
            capacity,
            holders: file.map_or_else(Vec::new, |file| file.busy.clone()),
        })
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
