//! The decisions of a limiter: on a word in its home lines with one compare-and-swap, and on any other state by the
//! rules of all engines.

use core::hash::Hash;
use core::time::Duration;

use super::Limiter;
use super::verdict::{Details, Verdict};
use crate::algorithm::exponential::Exponential;
use crate::algorithm::{Algorithm, Judged, Limit, Mode, State, in_words, judge};
use crate::clock::{Clock, Nanos};
use crate::cost::Cost;
use crate::decision::{Action, Outcome, Wait};
use crate::error::RuleError;
use crate::rules::atomic;
use crate::store::ByRank;
use crate::store::table::{Change, KeyHash, Lookup, ReadEntry, Table, Word};

/// An upper bound of the age of the clock's last reading. A request that the rule denies at the
/// last reading, and would still deny this much later, is denied without another reading.
const SOON: Duration = Duration::from_secs(1);

/// A client, and its home lines if its state is a word.
pub(super) struct Fetched<'a> {
    key: KeyHash,
    place: Option<Lookup<'a>>,
}

impl<K: ?Sized, C: Clock> Limiter<K, C> {
    /// Hashes a key and prefetches its client's state.
    #[inline(always)]
    pub(super) fn fetch<Q: Hash + ?Sized>(&self, key: &Q) -> Fetched<'_> {
        let key = self.hasher.hash(key);
        Fetched {
            key,
            place: self.clients.place(key, self.rule.limit().policy()),
        }
    }

    /// Decides a request of any cost as of the given instant, or at the present one.
    #[inline(always)]
    pub(super) fn decide_cost<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        cost: Cost,
        given: Option<Nanos>,
        mode: Mode,
    ) -> Result<Verdict<'_>, RuleError> {
        let cost = self.rule.accept(cost)?;
        let given = given.map(|given| self.clock.at(given));
        Ok(self.decide(self.fetch(key), cost, given, mode))
    }

    /// Decides a request at the given instant, or at the present one.
    #[inline(always)]
    pub(super) fn decide(
        &self,
        Fetched { key, place }: Fetched<'_>,
        cost: Cost,
        given: Option<Nanos>,
        mode: Mode,
    ) -> Verdict<'_> {
        let is_denying = || self.rule.action() == Action::Deny;
        in_words!(
            self.rule.limit(),
            limit => if let Some(place) = place
                && is_denying()
            {
                return self.step(limit, place, cost, given, mode);
            },
            else if let Limit::Exponential(limit) = self.rule.limit()
                && is_denying()
            {
                return self.decide_average(limit, key, cost, self.now(given), mode);
            }
        );
        self.decide_any(key, cost, self.now(given), mode)
    }

    /// Decides a request whose client has an average. It is copied like a word, so that the figures, some of which
    /// are the solutions of equations, are computed only on demand.
    #[inline(never)]
    fn decide_average<'a>(
        &'a self,
        limit: &'a Exponential,
        key: KeyHash,
        cost: Cost,
        now: Nanos,
        mode: Mode,
    ) -> Verdict<'a> {
        let decide = |state: Option<State>| {
            let before = match state {
                Some(State::Exponential(before)) => Some(before),
                _ => None,
            };
            let Judged { after, allowed, .. } = judge(limit, before, now, cost, mode);
            let verdict = Verdict {
                rule: &self.rule,
                now,
                cost,
                allowed,
                details: Details::Averages {
                    limit,
                    before,
                    after,
                    mode,
                },
            };
            (after.map(State::Exponential), verdict)
        };
        self.clients
            .visit(key, self.rule.limit(), now, mode, decide)
    }

    #[inline(always)]
    fn now(&self, given: Option<Nanos>) -> Nanos {
        given.unwrap_or_else(|| self.clock.now())
    }

    /// Decides a request with one compare-and-swap and without figures. The clock is read while the
    /// state is fetched. The clock's last reading is used, unless it denies the request and the
    /// present instant may allow it.
    ///
    /// A verdict that this function returns is written where the caller wants it. One that two branches hand on
    /// would be copied, which takes a third of the instructions of a decision.
    #[inline(always)]
    fn step<A: Algorithm>(
        &self,
        limit: &A,
        place: Lookup<'_>,
        cost: Cost,
        given: Option<Nanos>,
        mode: Mode,
    ) -> Verdict<'_> {
        let lately = if given.is_some() {
            None
        } else {
            self.clock.lately(self.lag)
        };
        if let Some(lately) = lately {
            let Some(seen) = place.at_home() else {
                return self.step_anywhere(limit, place.key, (lately, true), cost, mode);
            };
            if let Some(verdict) = self.swap(seen, limit, (lately, true), cost, mode) {
                return verdict;
            }
        }
        let now = self.now(given);
        if let Some(seen) = place.at_home()
            && let Some(verdict) = self.swap(seen, limit, (now, false), cost, mode)
        {
            return verdict;
        }
        self.step_anywhere(limit, place.key, (now, false), cost, mode)
    }

    /// Decides the request on the state that was read, and again if another thread changes it
    /// meanwhile. Returns `None`, with nothing stored, if the slot is no longer the client's, if a
    /// state fits no word, or if only the last reading of the clock denies the request.
    #[inline(always)]
    pub(super) fn swap<A: Algorithm>(
        &self,
        mut seen: ReadEntry<'_>,
        limit: &A,
        at: (Nanos, bool),
        cost: Cost,
        mode: Mode,
    ) -> Option<Verdict<'_>> {
        loop {
            let (change, verdict) = self.judge(limit, Some(seen.word()?), at, cost, mode)?;
            if seen.apply(change) {
                return Some(verdict);
            }
        }
    }

    /// Decides a request of a client that is new or outside of its home lines, at the given instant. If that is only
    /// the clock's last reading and denies the request, at the present one.
    #[cold]
    #[inline(never)]
    pub(super) fn step_anywhere<A: Algorithm>(
        &self,
        limit: &A,
        key: KeyHash,
        mut at: (Nanos, bool),
        cost: Cost,
        mode: Mode,
    ) -> Verdict<'_> {
        while let Some(table) = self.clients.table() {
            if let Some(verdict) = self.step_once(table, limit, key, at, cost, mode) {
                return verdict;
            }
            if !at.1 {
                break;
            }
            at = (self.clock.now(), false);
        }
        self.decide_any(key, cost, at.0, mode)
    }

    /// Decides a request of a client that is new or outside of its home lines. Returns `None`, with nothing stored, if
    /// another thread interferes, and where [`judge`](Self::judge) does.
    #[inline(always)]
    pub(super) fn step_once<A: Algorithm>(
        &self,
        table: &Table,
        limit: &A,
        key: KeyHash,
        at: (Nanos, bool),
        cost: Cost,
        mode: Mode,
    ) -> Option<Verdict<'_>> {
        self.clients.reached(at.0);
        let seen = table.search(key);
        let (change, verdict) = self.judge(limit, seen.word(), at, cost, mode)?;
        table
            .apply(key, seen, change, &ByRank(limit, at.0))
            .then_some(verdict)
    }

    /// Returns the verdict on a request, and the change of the client's entry. Returns `None` if the state before or
    /// after fits no word, or if `now` is only the last reading of the clock, as `is_lately` tells, and the present
    /// instant may allow a request that is denied.
    #[inline(always)]
    fn judge<A: Algorithm>(
        &self,
        limit: &A,
        word: Option<Word>,
        (now, is_lately): (Nanos, bool),
        cost: Cost,
        mode: Mode,
    ) -> Option<(Change, Verdict<'_>)> {
        let before = match word {
            Some(word) => Some(limit.state_of(word)?),
            None => None,
        };
        let Judged {
            after,
            allowed,
            stores,
        } = judge(limit, limit.advance(before, now), now, cost, mode);
        if !allowed && is_lately {
            let soon = now + SOON;
            let state = word.and_then(|word| limit.state_of(word));
            if limit.allows(limit.advance(state, soon).as_ref(), soon, cost) {
                return None;
            }
        }
        let (change, after) = match after {
            Some(after) if stores => {
                let after = limit.word(&after);
                (Change::Store(after), Some(after))
            }
            _ => (Change::Keep, word),
        };
        let details = Details::Words {
            before: word,
            after,
            mode,
        };
        Some((
            change,
            Verdict {
                rule: &self.rule,
                now,
                cost,
                allowed,
                details,
            },
        ))
    }

    #[inline(never)]
    pub(super) fn decide_any(
        &self,
        key: KeyHash,
        cost: Cost,
        now: Nanos,
        mode: Mode,
    ) -> Verdict<'_> {
        // Only a hold may take a place of concurrent: nothing would give back that of a check.
        let is_refused = mode != Mode::Peek && self.rule.limit().is_concurrent();
        let mode = if is_refused { Mode::Peek } else { mode };
        let mut decision = atomic::decide(&[self.part(key, cost)], mode, &|| now);
        if is_refused {
            (decision.allowed, decision.outcome) = (false, Outcome::Deny);
            decision.retry_after = Wait::Never;
        }
        let allowed = decision.allowed;
        let details = Details::Whole(decision);
        Verdict {
            rule: &self.rule,
            now,
            cost,
            allowed,
            details,
        }
    }
}
