//! Preparing rules, and changing them while requests are decided.

use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

use super::prepared::{Prepared, Registry, RuleBlocks, StoreLocation};
use super::{MemoryEngine, lock};
use crate::clock::Clock;
use crate::engine::{EngineError, RuleId};
use crate::rule::Rule;
use crate::store::{Bounds, Clients, States, wait_for_moves};

/// The milliseconds for which a change waits until no request uses an old store any more.
const PATIENCE: usize = 2000;

/// A rule to prepare in a [`MemoryEngine`].
///
/// ```
/// use earrrl::{MemoryEngine, Preparation};
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
    /// changes from one request to the next, the client's state is converted. Each conversion to another
    /// window moves counts forward, by a sub-window or to the present fixed window, so that a client
    /// whose window changes again and again is let in later.
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

    /// Returns the store of a rule: a shared one, or one of its own.
    fn clients(
        &self,
        wanted: &Preparation<'_>,
        place: StoreLocation<'_>,
    ) -> Result<Arc<Clients>, EngineError> {
        match wanted.store.and_then(|name| self.0.get(name)) {
            Some((states, _)) => Ok(Arc::new(Clients::sharing(
                Arc::clone(states),
                wanted.rule.limit(),
            ))),
            None => place.new_clients(wanted.name, wanted.rule, wanted.capacity),
        }
    }
}

/// A change of the rules that was prepared and not published yet.
struct RuleUpdate {
    next: RuleBlocks,
    ids: Vec<RuleId>,
    /// The indices of new rules.
    added: HashMap<Arc<str>, usize>,
    /// The rules whose clients move to a new store, before and after the change.
    moving: Vec<(Prepared, Prepared)>,
}

impl RuleUpdate {
    fn add(
        &mut self,
        wanted: &Preparation<'_>,
        names: &Registry,
        stores: (&SharedStores<'_>, StoreLocation<'_>),
    ) -> Result<(), EngineError> {
        let known = names
            .places
            .get(wanted.name)
            .or_else(|| self.added.get(wanted.name))
            .copied();
        let place = known.unwrap_or(names.places.len() + self.added.len());
        let clients = || stores.0.clients(wanted, stores.1);
        let prepared = match self.next.get(place) {
            Some(known) => {
                let changed = known.changed(wanted.rule, wanted.capacity, stores.1.now, clients)?;
                if !known.has_the_store_of(&changed) {
                    self.moving.push((known.clone(), changed.clone()));
                }
                changed
            }
            None => Prepared::new(wanted.name, wanted.rule, wanted.capacity, clients()?)?,
        };
        if known.is_none() {
            self.added.insert(Arc::clone(&prepared.name), place);
        }
        self.next.set(place, prepared);
        self.ids.push(RuleId(place as u32));
        Ok(())
    }
}

/// Writes the text of a rule into its file, if a change has left the file in use.
fn write_rule(before: Option<&Prepared>, after: Option<&Prepared>) {
    let Some((before, after)) = before.zip(after) else {
        return;
    };
    let changed = before.rule.limit() != after.rule.limit() && before.has_the_store_of(after);
    if let Some(file) = after.clients.file().filter(|_| changed) {
        file.write_rule(after.rule.limit());
    }
}

impl<C: Clock> MemoryEngine<C> {
    /// Prepares a rule as [`Engine::prepare`](crate::Engine::prepare) does, with memory for
    /// `capacity` clients of this rule.
    ///
    /// # Errors
    /// Returns an error if the name or the rule is invalid, or there is not enough memory.
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
    /// Requests are decided meanwhile. A change of only the limit touches no client. If a
    /// half-life, a refill, a window or the capacity changes, each client moves to a new store at
    /// its next request or in a sweep. The sweep ends before this function returns and takes about
    /// a second for five million clients, so call this from a thread that serves no requests. Both
    /// stores occupy memory until then. In a shared store, no client moves: its state is converted at
    /// its next request.
    ///
    /// # Errors
    /// Returns an error if a name or a rule is invalid, or there is not enough memory.
    pub fn prepare_all(&self, wanted: &[Preparation<'_>]) -> Result<Vec<RuleId>, EngineError> {
        let mut names = lock(&self.names);
        // Every step that can fail comes before the first change that a request can see.
        let stores = SharedStores::new(wanted, &names);
        let place = StoreLocation {
            directory: self.directory.as_deref(),
            now: self.clock.now(),
        };
        let next = RuleBlocks::clone(&self.rules.load_full());
        let added = HashMap::new();
        let mut change = RuleUpdate {
            next,
            ids: Vec::new(),
            added,
            moving: Vec::new(),
        };
        for wanted in wanted {
            change.add(wanted, &names, (&stores, place))?;
        }
        let RuleUpdate {
            next,
            ids,
            added,
            moving,
        } = change;
        moving
            .iter()
            .for_each(|(before, after)| before.give_way_to(after));
        for known in ids.iter().filter_map(|id| next.get(id.0 as usize)) {
            known.clients.begin(place.now);
            let limit = known.rule.limit();
            let bounds = Bounds::new(limit, known.capacity, known.rule.max_bytes());
            known.clients.bound(&bounds, limit, place.now);
        }
        self.publish(next, &ids);
        names.places.extend(added);
        for (name, (states, bounds)) in stores.0 {
            states.bound(&bounds, self.clock.now());
            names.stores.insert(name.into(), states);
        }
        drop(names);
        if !moving.is_empty() {
            let forgotten = moving
                .into_iter()
                .filter(|(_, after)| after.older.is_none());
            lock(&self.given_up).extend(forgotten.map(|(before, _)| before.clients));
            self.move_clients();
        }
        Ok(ids)
    }

    /// Publishes rules, of which those with these ids may have changed. No reference to the rules before is
    /// left, since their stores are freed once nobody uses them.
    fn publish(&self, next: RuleBlocks, ids: &[RuleId]) {
        let next = Arc::new(next);
        let before = self.rules.swap(Arc::clone(&next));
        ids.iter()
            .for_each(|id| write_rule(before.get(id.0 as usize), next.get(id.0 as usize)));
    }

    /// Moves the clients that a change left behind; see [`prepare_all`](Self::prepare_all). Returns
    /// true if none is left. Also frees the memory of clients with larger states that are as good as new, so
    /// call it now and then.
    ///
    /// Only a table whose size was changed keeps clients: those that are not idle stay until their
    /// next request, since their keys are not known. The next change tries again, and so does each
    /// further call of this function. The memory of such a table, and of the tables of later changes, is
    /// freed after its last client.
    pub fn tidy(&self) -> bool {
        self.drop_idle();
        self.move_clients()
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

    /// Moves the clients that a change left behind, and returns true if none is left.
    fn move_clients(&self) -> bool {
        let _sweeping = lock(&self.sweeping);
        if let Some(directory) = &self.directory {
            directory.reached(self.clock.now());
        }
        self.follow();
        let mut empty = Vec::new();
        for place in 0..self.rules.load().len() {
            // No guard of the rules is held here, since a reload would then have to keep what the
            // guard protects.
            let known = self
                .rules
                .load()
                .get(place)
                .filter(|known| known.older.is_some())
                .cloned();
            let Some(known) = known else { continue };
            if let Some(swept) = known.sweep(self.clock.now(), &mut empty) {
                // Another thread may have taken a client out of the older store and not stored it in the
                // new one yet. Once the rule has no older store, requests take that client for a new one.
                wait_for_moves();
                self.replace(place, &known, |now| Prepared {
                    older: swept.older,
                    ..now
                });
            }
        }
        lock(&self.given_up).append(&mut empty);
        self.give_back();
        self.rules.load().iter().all(|known| known.older.is_none())
    }

    /// Goes on in the latest generations of state files for which other processes have changed a rule, and
    /// removes the generations that no process needs any more.
    fn follow(&self) {
        for place in 0..self.rules.load().len() {
            let known = self
                .rules
                .load()
                .get(place)
                .filter(|known| known.clients.file().is_some())
                .cloned();
            let Some(known) = known else { continue };
            if let Some(file) = known.clients.file() {
                file.tidy(self.clock.now());
            }
            if let Some(next) = known.followed(self.clock.now()) {
                let fault = known.clients.fault().cloned();
                let found = fault.map_or_else(|| Ok(next.rule.clone()), Err);
                lock(&self.followed).push((String::from(&*known.name), found));
                self.replace(place, &known, |_| next);
                lock(&self.given_up).push(known.clients);
            }
        }
    }

    /// Frees the memory of old stores once no request uses them any more. That usually takes
    /// microseconds, or longer if a thread is suspended in the middle of a request. Freeing a large
    /// store takes time, so the last request that uses it must not be the one to do it.
    fn give_back(&self) {
        let mut left = std::mem::take(&mut *lock(&self.given_up));
        for _ in 0..PATIENCE {
            left.retain(|clients| Arc::strong_count(clients) > 1);
            if left.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        lock(&self.given_up).append(&mut left);
    }

    /// Publishes a rule whose clients have moved, unless the rule was changed meanwhile.
    fn replace(&self, place: usize, known: &Prepared, moved: impl FnOnce(Prepared) -> Prepared) {
        let _names = lock(&self.names);
        let mut next = RuleBlocks::clone(&self.rules.load_full());
        if let Some(now) = next
            .get(place)
            .filter(|now| now.has_the_store_of(known))
            .cloned()
        {
            next.set(place, moved(now));
            self.rules.store(Arc::new(next));
        }
    }
}
