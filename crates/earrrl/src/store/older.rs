//! Moves a rule's clients to a new store after a rule change that gives their states another
//! meaning or their table another size.
//!
//! A client moves at its next request; a sweep moves the others. No request waits for more than one
//! client's move.
//!
//! First the older store is sealed, then the rule is published with the new store. A request whose
//! client is not in the new store takes it out of the older store and converts its state. A request
//! that began under the older rule and does not find its client continues in the new store.
//! `table/transfer.rs` proves that no client is lost or counted twice.

use std::boxed::Box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::by_rank::ByRank;
use super::clients::{Clients, Kept, Next};
use super::states::States;
use super::table::{KeyHash, lock_of};
use crate::algorithm::{Limit, Policy, State};
use crate::clock::Nanos;
use crate::rule::Rule;

/// Locks that let only one thread move a client at a time. A thread that waits for a lock sleeps,
/// which takes longer than a move; with this many locks, a request hardly ever waits for the sweep.
struct Locks([Mutex<()>; 4096]);

/// The locks for moves of words and of larger states. They are separate, since a request under
/// rules of both kinds moves a word while it holds shards of larger states, and the move of a
/// larger state locks shards: with common locks, the two could wait for each other. The locking
/// order is `STATES`, shards, `WORDS`.
static WORDS: Locks = Locks([const { Mutex::new(()) }; 4096]);
static STATES: Locks = Locks([const { Mutex::new(()) }; 4096]);

impl Locks {
    fn lock(&self, key: KeyHash) -> MutexGuard<'_, ()> {
        self.0[lock_of(key, self.0.len())]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks a client so that no other thread moves it.
pub(crate) fn lock_move(kept: &Kept, key: KeyHash) -> MutexGuard<'static, ()> {
    match kept {
        Kept::Words(_) => WORDS.lock(key),
        Kept::States(_) => STATES.lock(key),
    }
}

/// Waits until every move of a client to another store that has begun has ended. A thread that moves a client
/// holds one of these locks, chosen by the client's key, until the client is in the next store.
pub(crate) fn wait_for_moves() {
    WORDS.0.iter().chain(&STATES.0).for_each(|lock| {
        drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
    });
}

/// A sealed store, and the limit under which its states were stored.
pub(crate) struct Older {
    pub(crate) limit: Limit,
    pub(crate) clients: Arc<Clients>,
    /// The store before this one, if any clients are left in it.
    pub(crate) older: Option<Arc<Older>>,
}

impl Older {
    /// Moves a client to the new store, unless it is there already.
    pub(crate) fn settle(&self, key: KeyHash, rule: &Rule, clients: &Clients, now: Nanos) {
        // Every line is prefetched before the first one is waited for.
        self.prefetch(key);
        if !clients.contains(key) {
            let _moving = lock_move(&clients.kept, key);
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

    /// Moves all clients to the new store, adds the stores that can be freed then to `empty`, and
    /// returns the stores that still have clients. States that fit no word any more are rounded up,
    /// since the table has no keys. If the new table has another size, only clients
    /// that are idle are removed, and the others move at their next request: the older table has
    /// only a client's fingerprint, which does not determine its place in the new table.
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
            // An older store that still has clients refers to this one, and frees it when it is freed itself.
            if older.is_none() {
                empty.push(Arc::clone(&self.clients));
            }
            return older;
        }
        let limit = self.limit;
        let clients = Arc::clone(&self.clients);
        Some(Arc::new(Self {
            limit,
            clients,
            older,
        }))
    }

    fn is_empty_after_sweep(&self, rule: &Rule, clients: &Clients, now: Nanos) -> bool {
        let limit = rule.limit();
        if let Some(beside) = self.clients.states_beside_words() {
            self.sweep_states(beside, rule, clients, now);
        }
        match (&self.clients.kept, &clients.kept) {
            (Kept::Words(from), Kept::Words(into)) if from.is_laid_out_as(into) => {
                let convert = |word| {
                    let state = limit.convert(&self.limit, self.limit.state_of(word)?, now)?;
                    limit.word_or_above(&state)
                };
                from.pour(into, |key| WORDS.lock(key), convert, &ByRank(limit, now))
            }
            (Kept::Words(from), _) => from.clear_idle(&ByRank(&self.limit, now)) == 0,
            (Kept::States(from), _) => {
                self.sweep_states(from, rule, clients, now);
                true
            }
        }
    }

    /// Moves the clients that were idle for longest first, so that the new store has the same
    /// order.
    fn sweep_states(&self, from: &States, rule: &Rule, clients: &Clients, now: Nanos) {
        for shard in from.indices() {
            let next = || from.lock(shard).longest_idle();
            while let Some(key) = next() {
                let _moving = lock_move(&clients.kept, key);
                if let Some(state) = self.clients.take(key, &self.limit) {
                    clients.receive(key, rule, state, &self.limit, now);
                }
            }
        }
    }

    /// Returns the number of stores from this one to the oldest.
    pub(crate) fn stores(&self) -> usize {
        1 + self.older.as_ref().map_or(0, |older| older.stores())
    }

    /// Returns the number of clients that have not moved yet.
    pub(crate) fn len(&self) -> usize {
        self.clients.len() + self.older.as_ref().map_or(0, |older| older.len())
    }
}

impl Clients {
    /// Seals this store, so that no client is inserted any more. Its clients move to `next`.
    pub(crate) fn seal(&self, next: Next) {
        // Set before the seal, so that a thread that sees the seal also finds the next store. A
        // store is sealed only once.
        let _ = self.next.set(Box::new(next));
        match &self.kept {
            Kept::Words(table) => table.seal(),
            Kept::States(states) => states.seal(),
        }
    }

    /// Returns the store to which a client has moved that is not found here, after moving the
    /// client if necessary; `None` if this store is not sealed.
    pub(crate) fn next(&self, key: KeyHash, rule: &Rule, now: Nanos) -> Option<&Next> {
        if let Some(next) = self.follow(rule) {
            return Some(next);
        }
        let next = self.next.get().map(Box::as_ref)?;
        if !next.clients.contains(key) {
            let _moving = lock_move(&next.clients.kept, key);
            if let Some(state) = self.take(key, rule.limit()) {
                next.clients
                    .receive(key, &next.rule, state, rule.limit(), now);
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
            Kept::Words(table) => self.take_word(table, key, limit),
            Kept::States(states) => states.lock_of(key).remove(key),
        }
    }

    /// Stores a client that was under the limit `old`, or passes it on to the next store if this
    /// one is sealed by now.
    fn receive(&self, key: KeyHash, rule: &Rule, state: State, old: &Limit, now: Nanos) {
        let limit = rule.limit();
        let Some(state) = limit.convert(old, state, now) else {
            return;
        };
        let store = |there: Option<State>| (there.or_else(|| Some(state.clone())), ());
        if self.update(key, limit, now, store).is_none()
            && let Some(next) = self.next.get()
        {
            next.clients
                .receive(key, &next.rule, state.clone(), limit, now);
        }
    }
}

#[cfg(test)]
#[path = "older_tests.rs"]
mod tests;
