//! Preparing rules, and changing them while requests are decided.

use std::collections::{HashMap, HashSet};
use std::format;
use std::sync::Arc;
use std::vec::Vec;

use super::notice::Notice;
use super::prepared::{Preparation, Prepared, Registry, Rules};
use super::{MemoryEngine, lock};
use crate::clock::{Clock, Nanos};
use crate::engine::{EngineError, RuleId, check_name};
use crate::rule::Rule;
use crate::store::file::StateFile;
use crate::store::{Bounds, Clients, StateDirectory, States, checksum};

/// A change of the rules that was prepared and not published yet.
struct RuleUpdate<'w, 'e> {
    wanted: &'w [Preparation<'w>],
    names: &'e mut Registry,
    /// The directory of the engine's state files, which are swept at `now`.
    directory: Option<&'e StateDirectory>,
    now: Nanos,
    next: Vec<Arc<Prepared>>,
    ids: Vec<RuleId>,
    /// The indices of new rules.
    added: HashMap<Arc<str>, usize>,
}

impl RuleUpdate<'_, '_> {
    fn add(&mut self, wanted: &Preparation<'_>) -> Result<(), EngineError> {
        let known = self.names.places.get(wanted.name);
        let known = known.or_else(|| self.added.get(wanted.name));
        let place = known.copied().unwrap_or(self.next.len());
        let known = self.next.get(place).cloned();
        let changed = known.as_ref().and_then(|known| known.changed(wanted));
        let prepared = match changed {
            Some(changed) => changed,
            None => self.afresh(wanted, known.as_deref())?,
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

    /// Returns a rule whose clients begin afresh, in place of `known` if its name is known.
    fn afresh(
        &mut self,
        wanted: &Preparation<'_>,
        known: Option<&Prepared>,
    ) -> Result<Prepared, EngineError> {
        check_name(wanted.name)?;
        Ok(Prepared {
            name: wanted.name.into(),
            rule: wanted.rule.clone(),
            clients: self.new_clients(wanted)?,
            capacity: wanted.capacity,
            name_hash: checksum(wanted.name.as_bytes()),
            version: known.map_or(0, |known| known.version + 1),
        })
    }

    fn new_clients(&mut self, wanted: &Preparation<'_>) -> Result<Arc<Clients>, EngineError> {
        let shared = match (wanted.store, self.directory) {
            (Some(store), None) => Some(self.in_shared_map(store, wanted)),
            (Some(store), Some(_)) => self.in_file_of(store, wanted),
            (None, _) => None,
        };
        if let Some(shared) = shared {
            return Ok(shared);
        }
        let Preparation {
            name,
            rule,
            capacity,
            ..
        } = *wanted;
        let limit = rule.limit();
        let directory = self.directory;
        let clients = match directory.filter(|directory| !directory.leaves_in_memory(limit)) {
            Some(directory) => directory.with_file(name, limit, capacity, |wanted| {
                Clients::open(wanted, |_| self.now).map(|(clients, _)| clients)
            }),
            None => Clients::new(limit, capacity, rule.max_bytes()),
        };
        let unavailable = |error| EngineError::Unavailable(format!("rule {name}: {error}"));
        clients.map(Arc::new).map_err(unavailable)
    }

    /// Returns the view of a limit on a shared store, which has room for the rules that are prepared with it.
    fn in_shared_map(&mut self, store: &str, wanted: &Preparation<'_>) -> Arc<Clients> {
        let new = || {
            let sharing = self.wanted.iter().filter(|one| one.store == Some(store));
            let bounds = sharing.map(Preparation::bounds);
            Arc::new(States::shared(
                &bounds.fold(wanted.bounds(), Bounds::joined),
            ))
        };
        let states = self.names.stores.entry(store.into()).or_insert_with(new);
        Arc::new(Clients::in_map(Arc::clone(states), wanted.rule.limit()))
    }

    /// Returns the clients of the rule that has the name of the wanted store, if states mean the same there.
    fn in_file_of(&self, store: &str, wanted: &Preparation<'_>) -> Option<Arc<Clients>> {
        let known = self.next.get(*self.names.places.get(store)?)?;
        Some(known.changed(wanted)?.clients)
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
        // Every step that can fail comes before the first change that a request can see.
        let mut names = lock(&self.names);
        let now = self.clock.now();
        let mut update = RuleUpdate {
            wanted,
            names: &mut names,
            directory: self.directory.as_deref(),
            now,
            next: Vec::clone(&self.rules.load_full()),
            ids: Vec::new(),
            added: HashMap::new(),
        };
        for wanted in wanted {
            update.add(wanted)?;
        }
        let RuleUpdate {
            next, ids, added, ..
        } = update;
        names.places.extend(added);
        let before = self.rules.swap(Arc::new(next.clone()));
        let mut bounds = bounds_of_maps(&next);
        for id in &ids {
            let Some(after) = next.get(id.0 as usize) else {
                continue;
            };
            let before = before.get(id.0 as usize).map(Arc::as_ref);
            self.prepared_anew(before, after, now);
            if let Some(bounds) = after.map().and_then(|map| bounds.remove(&map)) {
                after.clients.bound(&bounds, now);
            }
            #[cfg(target_os = "linux")]
            self.holds.attach(after.name_hash, *id, &after.clients);
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
        let Prepared { rule, capacity, .. } = &**known;
        if let Ok(clients) = Clients::new(rule.limit(), *capacity, rule.max_bytes()) {
            let mut next = Vec::clone(&rules);
            next[place] = Arc::new(Prepared {
                clients: Arc::new(clients),
                ..Prepared::clone(known)
            });
            self.rules.store(Arc::new(next));
        }
    }

    /// Frees the memory of clients with larger states that are as good as new. Rules that share a store are
    /// many, so the store is looked at once.
    fn drop_idle(&self) {
        let mut seen = HashSet::new();
        for place in 0..self.rules.load().len() {
            let Some(known) = self.rules.load().get(place).cloned() else {
                continue;
            };
            if known.map().is_some_and(|map| seen.insert(map)) {
                let limit = known.rule.limit();
                known.clients.walk(limit, self.clock.now(), |_| ());
            }
        }
    }
}

/// Returns the bounds of each map of larger states, which needs room for the states of all of its rules.
fn bounds_of_maps(rules: &Rules) -> HashMap<usize, Bounds> {
    let mut all: HashMap<usize, Bounds> = HashMap::new();
    for known in rules {
        if let Some(map) = known.map() {
            let bounds = known.bounds();
            all.entry(map)
                .and_modify(|all| *all = all.joined(bounds))
                .or_insert(bounds);
        }
    }
    all
}
