//! A rule's clients after a change that gives their states another meaning, or their table another
//! size: they go over from the store before to the one after, each when it is first met, and the
//! others by a sweep. No request waits for more than one client's move.
//!
//! The store before is sealed, then the rule is published with the store after. A request settles its
//! client first: takes it out of the store before, converted, unless it is in the store after. A request
//! that began under the rule before and finds its client absent there goes on to the store after. See
//! `table/transfer.rs` for why nobody is lost or counted twice on the way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::clients::{Clients, Kept, Next};
use super::states::States;
use super::table::{KeyHash, lock_of};
use crate::algorithm::{Limit, Policy, State};
use crate::clock::Nanos;
use crate::rule::Rule;

/// Who moves a client has the lock of its key: at most one does. So many that a request hardly ever
/// meets the sweep: whoever waits for a lock sleeps, for longer than a move takes.
static MOVING: [Mutex<()>; 4096] = [const { Mutex::new(()) }; 4096];

fn alone(key: KeyHash) -> MutexGuard<'static, ()> {
    MOVING[lock_of(key, MOVING.len())].lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sealed store, and the limit that its states are under.
pub(crate) struct Older {
    pub(crate) limit: Limit,
    pub(crate) clients: Arc<Clients>,
    /// The one before it, where clients are left in that.
    pub(crate) older: Option<Arc<Older>>,
}

impl Older {
    /// Brings a client to the store after, unless it is there.
    pub(crate) fn settle(&self, key: KeyHash, rule: &Rule, clients: &Clients, now: Nanos) {
        // All are on their way before the first is waited for.
        self.prefetch(key);
        if !clients.contains(key) {
            let _alone = alone(key);
            if let Some((state, limit)) = self.take(key) {
                clients.receive(key, rule, state, limit, now);
            }
        }
    }

    fn prefetch(&self, key: KeyHash) {
        self.clients.prefetch(key, Policy::Strict);
        if let Some(older) = &self.older {
            older.prefetch(key);
        }
    }

    fn take(&self, key: KeyHash) -> Option<(State, &Limit)> {
        match self.clients.take(key, &self.limit) {
            Some(state) => Some((state, &self.limit)),
            None => self.older.as_ref()?.take(key),
        }
    }

    /// Brings all clients to the store after, and puts the stores that are empty then into `empty`. What is
    /// still needed: a table of another size keeps the clients that are not idle until they are met, for
    /// the place of a client that is known by its fingerprint only is unknown.
    pub(crate) fn sweep(
        &self,
        rule: &Rule,
        clients: &Clients,
        now: Nanos,
        empty: &mut Vec<Arc<Clients>>,
    ) -> Option<Arc<Self>> {
        let older = self.older.as_ref();
        let older = older.and_then(|older| older.sweep(rule, clients, now, empty));
        if self.is_empty_after_sweep(rule, clients, now) {
            empty.push(Arc::clone(&self.clients));
            return older;
        }
        let (limit, clients) = (self.limit, Arc::clone(&self.clients));
        Some(Arc::new(Self { limit, clients, older }))
    }

    fn is_empty_after_sweep(&self, rule: &Rule, clients: &Clients, now: Nanos) -> bool {
        let limit = rule.limit();
        match (&self.clients.kept, &clients.kept) {
            (Kept::Words(from), Kept::Words(into)) if from.is_laid_out_as(into) => {
                let convert = |word| {
                    let state = limit.convert(&self.limit, self.limit.state_of(word)?, now);
                    state?.word()
                };
                from.pour(into, alone, convert, limit.idle(now))
            }
            (Kept::Words(from), _) => from.clear_idle(self.limit.idle(now)) == 0,
            (Kept::States(from), _) => {
                self.sweep_states(from, rule, clients, now);
                true
            }
        }
    }

    /// The longest idle first, so that they are so in the store after, too.
    fn sweep_states(&self, from: &States, rule: &Rule, clients: &Clients, now: Nanos) {
        for shard in from.indices() {
            let next = || from.lock(shard).longest_idle();
            while let Some(key) = next() {
                let _alone = alone(key);
                if let Some(state) = self.clients.take(key, &self.limit) {
                    clients.receive(key, rule, state, &self.limit, now);
                }
            }
        }
    }

    /// How many clients are left.
    pub(crate) fn len(&self) -> usize {
        self.clients.len() + self.older.as_ref().map_or(0, |older| older.len())
    }
}

impl Clients {
    /// Lets no newcomer in any more: this store's clients go over to `next`.
    pub(crate) fn seal(&self, next: Next) {
        // Whoever sees the seal finds the next store. A store is sealed once.
        let _ = self.next.set(next);
        match &self.kept {
            Kept::Words(table) => table.seal(),
            Kept::States(states) => states.seal(),
        }
    }

    /// Where a client is that is not here: with it, what was its state here.
    pub(crate) fn next(&self, key: KeyHash, limit: &Limit, now: Nanos) -> Option<&Next> {
        let next = self.next.get()?;
        if !next.clients.contains(key) {
            let _alone = alone(key);
            if let Some(state) = self.take(key, limit) {
                next.clients.receive(key, &next.rule, state, limit, now);
            }
        }
        Some(next)
    }

    fn contains(&self, key: KeyHash) -> bool {
        match &self.kept {
            Kept::Words(table) => table.get(key).is_some(),
            Kept::States(states) => states.lock_of(key).contains(key),
        }
    }

    fn take(&self, key: KeyHash, limit: &Limit) -> Option<State> {
        match &self.kept {
            Kept::Words(table) => table.take(key).and_then(|word| limit.state_of(word)),
            Kept::States(states) => states.lock_of(key).remove(key),
        }
    }

    /// Stores a client that was under `old`; in the store after this one where this one is sealed by now.
    fn receive(&self, key: KeyHash, rule: &Rule, state: State, old: &Limit, now: Nanos) {
        let limit = rule.limit();
        let Some(state) = limit.convert(old, state, now) else { return };
        let store = |there: Option<State>| (there.or_else(|| Some(state.clone())), ());
        if self.update(key, limit, now, store).is_none()
            && let Some(next) = self.next.get()
        {
            next.clients.receive(key, &next.rule, state.clone(), limit, now);
        }
    }
}
