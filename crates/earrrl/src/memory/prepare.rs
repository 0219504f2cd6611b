//! Preparing rules, and changing them while requests are decided.

use std::collections::{HashMap, HashSet};
use std::iter;
use std::sync::Arc;
use std::vec::Vec;

use super::notice::Notice;
use super::prepared::{Prepared, Registry, StoreLocation};
use super::{MemoryEngine, lock};
use crate::clock::{Clock, Nanos};
use crate::engine::{EngineError, RuleId};
use crate::rule::Rule;
use crate::store::file::StateFile;
use crate::store::{Bounds, Clients, States};

/// A rule to prepare in a [`MemoryEngine`].
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
    /// A shared store takes memory as clients come, up to the greatest capacity of the rules that are prepared
    /// in one call, so prepare all of its rules together. The clients of a rule that is then prepared with
    /// another store begin anew there.
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

/// The shared stores of the rules that are being prepared, with their new bounds.
#[derive(Default)]
struct SharedStores<'w>(HashMap<&'w str, (Arc<States>, Bounds)>);

impl<'w> SharedStores<'w> {
    fn new(wanted: &[Preparation<'w>], names: &Registry) -> Self {
        let mut bounds: HashMap<&str, Bounds> = HashMap::new();
        for Preparation {
            rule,
            capacity,
            store,
            ..
        } in wanted
        {
            if let Some(store) = store {
                let own = Bounds::new(rule.limit(), *capacity, rule.max_bytes());
                bounds
                    .entry(store)
                    .and_modify(|all| *all = all.joined(own))
                    .or_insert(own);
            }
        }
        let store = |(name, bounds): (&'w str, Bounds)| {
            let new = || Arc::new(States::shared(&bounds));
            (
                name,
                (names.stores.get(name).cloned().unwrap_or_else(new), bounds),
            )
        };
        Self(bounds.into_iter().map(store).collect())
    }

    /// Returns the view of a rule on its shared store, if it has one.
    fn clients(&self, wanted: &Preparation<'_>) -> Option<Arc<Clients>> {
        let (states, _) = self.0.get(wanted.store?)?;
        let clients = Clients::sharing(Arc::clone(states), wanted.rule.limit());
        Some(Arc::new(clients))
    }
}

/// A change of the rules that was prepared and not published yet.
struct RuleUpdate {
    next: Vec<Arc<Prepared>>,
    ids: Vec<RuleId>,
    /// The indices of new rules.
    added: HashMap<Arc<str>, usize>,
}

impl RuleUpdate {
    fn add(
        &mut self,
        wanted: &Preparation<'_>,
        names: &Registry,
        stores: (&SharedStores<'_>, StoreLocation<'_>),
    ) -> Result<(), EngineError> {
        let known = names.places.get(wanted.name);
        let known = known.or_else(|| self.added.get(wanted.name));
        let place = known.copied().unwrap_or(self.next.len());
        let clients = || {
            let shared = stores.0.clients(wanted);
            match shared.or_else(|| self.file_of_store(wanted, names)) {
                Some(clients) => Ok(clients),
                None => stores
                    .1
                    .new_clients(wanted.name, wanted.rule, wanted.capacity),
            }
        };
        let prepared = match self.next.get(place) {
            Some(known) => known.changed(wanted.rule, wanted.capacity, clients)?,
            None => Prepared::new(wanted.name, wanted.rule, wanted.capacity, clients()?)?,
        };
        let prepared = Arc::new(prepared);
        match self.next.get_mut(place) {
            Some(known) => *known = prepared,
            None => {
                self.added.insert(Arc::clone(&prepared.name), place);
                self.next.push(prepared);
            }
        }
        self.ids.push(RuleId(place as u32));
        Ok(())
    }

    /// Returns the clients of the rule that has the name of the wanted store, if states mean the same there.
    fn file_of_store(&self, wanted: &Preparation<'_>, names: &Registry) -> Option<Arc<Clients>> {
        let known = self.next.get(*names.places.get(wanted.store?)?)?;
        let keeps = known.clients.keeps(known.rule.limit(), wanted.rule.limit());
        keeps.then(|| Arc::clone(&known.clients))
    }
}

impl<C: Clock> MemoryEngine<C> {
    /// Prepares a rule as [`Engine::prepare`](crate::Engine::prepare) does, with memory for
    /// `capacity` clients of this rule.
    ///
    /// # Errors
    /// Returns an error if the name or the rule is invalid, or there is not enough memory.
    #[doc(hidden)]
    pub fn prepare_with(
        &self,
        name: &str,
        rule: &Rule,
        capacity: usize,
    ) -> Result<RuleId, EngineError> {
        self.prepare_all(&[Preparation {
            name,
            rule,
            capacity,
            store: None,
        }])
        .map(|ids| ids[0])
    }

    /// Prepares several rules at once. On an error, none is prepared.
    ///
    /// Requests are decided meanwhile. A changed rate, burst, quota, policy or action applies to the stored
    /// states: a bucket that fills faster waits at most for the time that fills an empty one, for which all
    /// clients are looked at once, a second for twenty million. If the algorithm, the half-life, the period,
    /// the window or the sub-windows change, the rule begins afresh, which [`notices`](Self::notices) says.
    /// Another capacity of a table takes effect at the next start, or in [`tidy`](Self::tidy) if no client is live.
    ///
    /// # Errors
    /// Returns an error if a name or a rule is invalid, or there is not enough memory.
    #[doc(hidden)]
    pub fn prepare_all(&self, wanted: &[Preparation<'_>]) -> Result<Vec<RuleId>, EngineError> {
        self.prepare_locked(wanted, &mut lock(&self.names))
    }

    /// Prepares a rule beside the other rules of a store; see [`Engine::prepare_in`](crate::Engine::prepare_in).
    pub(super) fn prepare_beside(
        &self,
        store: &str,
        name: &str,
        rule: &Rule,
    ) -> Result<RuleId, EngineError> {
        let mut names = lock(&self.names);
        let rules = self.rules.load_full();
        let map = names.stores.get(store).map(|map| Arc::as_ptr(map).addr());
        let is_other = |known: &&Arc<Prepared>| {
            map.is_some() && known.clients.shared_map() == map && *known.name != *name
        };
        let preparation = |name, rule, capacity| Preparation {
            name,
            rule,
            capacity,
            store: Some(store),
        };
        // The store needs room for the states of all of its rules.
        let others = rules.iter().filter(is_other);
        let others = others.map(|known| preparation(&*known.name, &known.rule, known.capacity));
        let wanted = iter::once(preparation(name, rule, self.capacity)).chain(others);
        let wanted: Vec<_> = wanted.collect();
        self.prepare_locked(&wanted, &mut names).map(|ids| ids[0])
    }

    fn prepare_locked(
        &self,
        wanted: &[Preparation<'_>],
        names: &mut Registry,
    ) -> Result<Vec<RuleId>, EngineError> {
        // Every step that can fail comes before the first change that a request can see.
        let stores = match self.directory {
            Some(_) => SharedStores::default(),
            None => SharedStores::new(wanted, names),
        };
        let place = StoreLocation {
            directory: self.directory.as_deref(),
            now: self.clock.now(),
        };
        let next = Vec::clone(&self.rules.load_full());
        let added = HashMap::new();
        let mut change = RuleUpdate {
            next,
            ids: Vec::new(),
            added,
        };
        for wanted in wanted {
            change.add(wanted, names, (&stores, place))?;
        }
        let RuleUpdate { next, ids, added } = change;
        let before = self.rules.swap(Arc::new(next.clone()));
        for id in &ids {
            let Some(after) = next.get(id.0 as usize) else {
                continue;
            };
            let before = before.get(id.0 as usize).map(Arc::as_ref);
            self.prepared_anew(before, after, place.now);
            #[cfg(target_os = "linux")]
            self.holds.attach(after.name_hash, *id, &after.clients);
        }
        names.places.extend(added);
        for (name, (states, bounds)) in stores.0 {
            states.bound(&bounds, self.clock.now());
            names.stores.insert(name.into(), states);
        }
        Ok(ids)
    }

    /// Applies a rule that was published in place of another one to the stored states, and notes what its users
    /// should know.
    ///
    /// Only after it was published: a request under the former rule could otherwise bring back a state
    /// that waits for the former, slower refill.
    fn prepared_anew(&self, before: Option<&Prepared>, after: &Prepared, now: Nanos) {
        let limit = after.rule.limit();
        if let Some(before) = before.filter(|before| before.version == after.version) {
            after.clients.carry(before.rule.limit(), limit, now);
        }
        let bounds = Bounds::new(limit, after.capacity, after.rule.max_bytes());
        after.clients.bound(&bounds, limit, now);
        if let Some(notice) = after.notice(before) {
            lock(&self.notices).insert(notice.rule().into(), notice);
        }
    }

    /// Returns the consequences of preparing rules that their users should know, at most one of each rule, and
    /// forgets them.
    #[doc(hidden)]
    pub fn notices(&self) -> Vec<Notice> {
        let notices = std::mem::take(&mut *lock(&self.notices));
        notices.into_values().collect()
    }

    /// Frees the memory of clients with larger states that are as good as new, gives tables without live clients
    /// the capacity that their rules have by now, and removes state files that a changed rule has left behind.
    /// Call it now and then.
    #[doc(hidden)]
    pub fn tidy(&self) {
        self.drop_idle();
        for place in 0..self.rules.load().len() {
            self.resize_if_idle(place);
        }
        if let Some(directory) = &self.directory {
            directory.reached(self.clock.now());
            let files = self.rules.load_full();
            files
                .iter()
                .filter_map(|known| known.clients.file())
                .for_each(StateFile::tidy);
        }
    }

    /// Gives a rule a table of its present capacity if the table of another capacity has no live client. A
    /// client that comes at this very moment may be new to the next table, too.
    fn resize_if_idle(&self, place: usize) {
        // The lock keeps others from changing the rule meanwhile.
        let _names = lock(&self.names);
        let rules = self.rules.load_full();
        let now = self.clock.now();
        let Some(known) = rules.get(place).filter(|known| known.waits_for_size(now)) else {
            return;
        };
        let memory = StoreLocation {
            directory: None,
            now,
        };
        if let Ok(clients) = memory.new_clients(&known.name, &known.rule, known.capacity) {
            let mut next = Vec::clone(&rules);
            next[place] = Arc::new(Prepared {
                clients,
                ..Prepared::clone(known)
            });
            self.rules.store(Arc::new(next));
        }
    }

    /// Frees the memory of clients with larger states that are as good as new. Rules that share a store are
    /// many, so the store is looked at once.
    fn drop_idle(&self) {
        let mut shared = HashSet::new();
        for place in 0..self.rules.load().len() {
            let Some(known) = self.rules.load().get(place).cloned() else {
                continue;
            };
            if known
                .clients
                .shared_map()
                .is_none_or(|map| shared.insert(map))
            {
                known
                    .clients
                    .drop_idle(known.rule.limit(), self.clock.now());
            }
        }
    }
}
