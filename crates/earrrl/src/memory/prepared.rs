//! The rules of an engine in memory, and the effect of a changed rule on its clients.

use std::boxed::Box;
use std::collections::HashMap;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

use super::notice::Notice;
use crate::clock::Nanos;
use crate::rule::Rule;
use crate::store::table::{Table, sets_for};
use crate::store::{Bounds, Clients, States};

/// A rule to prepare in a [`MemoryEngine`](crate::MemoryEngine).
///
/// ```
/// use earrrl::MemoryEngine;
/// use earrrl::internal::Preparation;
///
/// let engine = MemoryEngine::new(1000)?;
/// let (login, search) = ("gcra 1/s burst=5".parse()?, "fixed-window 60/1m".parse()?);
/// let ids = engine.prepare_all(&[
///     Preparation { name: "login", rule: &login, capacity: 1000, store: None },
///     Preparation { name: "search", rule: &search, capacity: 1000, store: None },
/// ])?;
/// assert_eq!(ids.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Preparation<'a> {
    /// The rule's name.
    pub name: &'a str,
    /// The rule.
    pub rule: &'a Rule,
    /// The number of clients to allocate memory for.
    pub capacity: usize,
    /// The name of the store that the rule shares with other rules; `None` for a store of its own.
    ///
    /// A shared store takes memory as clients come, up to the greatest capacity of its rules. Prepare its first
    /// rules in one call, so that it is divided into as many parts as the largest of them needs. A rule keeps its
    /// store while its states keep their meaning.
    ///
    /// It has one state for each key, so a key must be decided under one of its rules at a time. If that
    /// changes from one request to the next, the client begins afresh, unless its state means the same under
    /// both limits: the same algorithm with the same half-life, period or window.
    ///
    /// In a directory, a shared store is the file of the rule that has the store's name. A rule whose states mean
    /// something else has a file of its own. There, a client of a bucket that fills faster than its former one
    /// first waits as long as under that.
    pub store: Option<&'a str>,
}

impl Preparation<'_> {
    /// Returns the bounds that the rule by itself would give to its map of larger states.
    pub(super) fn bounds(&self) -> Bounds {
        Bounds::new(self.rule.limit(), self.capacity, self.rule.max_bytes())
    }
}

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

impl Prepared {
    /// Returns the rule that replaces this one under the same name and decides on the same clients; `None` if
    /// their states have another meaning under it.
    pub(super) fn changed(&self, wanted: &Preparation<'_>) -> Option<Self> {
        let limit = wanted.rule.limit();
        let keeps = self.clients.keeps(self.rule.limit(), limit);
        let same = || Arc::clone(&self.clients);
        keeps.then(|| Self {
            rule: wanted.rule.clone(),
            clients: self.clients.under(limit).map_or_else(same, Arc::new),
            capacity: wanted.capacity,
            ..self.clone()
        })
    }

    /// Returns the address of the map of larger states, which is the same for all rules that share it.
    pub(super) fn map(&self) -> Option<usize> {
        let view = self.clients.view()?;
        Some(Arc::as_ptr(&view.states).addr())
    }

    /// Returns the bounds that the rule by itself would give to its map.
    pub(super) fn bounds(&self) -> Bounds {
        Bounds::new(self.rule.limit(), self.capacity, self.rule.max_bytes())
    }

    /// Returns the table if the rule has another capacity by now.
    fn table_of_other_size(&self) -> Option<&Table> {
        let table = self.clients.table()?;
        (sets_for(table.capacity()) != sets_for(self.capacity)).then_some(table)
    }

    /// Returns true if the rule has another capacity than its table in memory, which has no live client at `now`.
    pub(super) fn waits_for_size(&self, now: Nanos) -> bool {
        let limit = self.rule.limit();
        let is_live = |word| limit.rank(word, now) > limit.idle(now);
        let table = self.table_of_other_size();
        let table = table.filter(|_| self.clients.file().is_none());
        table.is_some_and(|table| !table.iter().any(|client| is_live(client.word)))
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
        Some(Notice::Capacity {
            rule,
            capacity: self.table_of_other_size()?.capacity(),
            holders: file.map_or_else(Vec::new, |file| file.busy.clone()),
        })
    }
}
