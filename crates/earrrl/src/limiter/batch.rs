//! Batches of requests: the states of several clients are fetched at the same time.

use core::borrow::Borrow;
use core::hash::Hash;

use super::{Limiter, Verdict};
use crate::algorithm::{Algorithm, Limit, Mode, in_words};
use crate::clock::Clock;
use crate::cost::Cost;
use crate::decision::Action;
use crate::store::table::{Lookup, Purpose, Table};

/// The number of keys of a batch whose states are prefetched together.
const BATCH: usize = 16;

/// The answers to at most [`BATCH`] requests, one bit for each.
#[derive(Clone, Copy, Default)]
struct Answers {
    /// The lowest bit is set if the next request is allowed.
    allowed: u32,
    left: usize,
}

/// # Deciding in batches
impl<K: ?Sized, C: Clock> Limiter<K, C> {
    /// Decides one request of cost 1 for each key, in order. This is several times as fast as
    /// single decisions if the clients' states do not fit the processor's cache. The states of
    /// sixteen clients are prefetched together; each request is decided when its verdict is
    /// consumed.
    ///
    /// ```
    /// # let rule: earrrl::Rule = "gcra 1/s burst=2".parse()?;
    /// let limiter: earrrl::Limiter<u64> = earrrl::Limiter::builder(rule).build()?;
    /// let allowed = limiter.check_batch(&[7, 7, 8, 7]).filter(|verdict| verdict.is_allowed());
    /// assert_eq!(allowed.count(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn check_batch<'a, Q, I>(&'a self, keys: I) -> impl Iterator<Item = Verdict<'a>> + 'a
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized + 'a,
        I: IntoIterator<Item = &'a Q, IntoIter: 'a>,
    {
        let mut keys = keys.into_iter().fuse();
        let mut fetched = [const { None }; BATCH];
        let mut next = 0..0;
        core::iter::from_fn(move || {
            if next.is_empty() {
                let fetch = |(fetched, key): (&mut _, _)| *fetched = Some(self.fetch(key));
                next = 0..fetched.iter_mut().zip(&mut keys).map(fetch).count();
            }
            let fetched = fetched[next.next()?].take()?;
            Some(self.decide(fetched, Cost::ONE, None, Mode::Check))
        })
    }

    /// Decides one request of cost 1 for each key, in order, and returns true for each that is
    /// allowed. This is the fastest way to decide many requests. Sixteen requests are decided
    /// together, at one instant, when the first of their answers is consumed.
    ///
    /// ```
    /// # let rule: earrrl::Rule = "gcra 1/s burst=2".parse()?;
    /// let limiter: earrrl::Limiter<u64> = earrrl::Limiter::builder(rule).build()?;
    /// let allowed: Vec<bool> = limiter.admit_batch(&[7, 7, 8, 7]).collect();
    /// assert_eq!(allowed, [true, true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn admit_batch<'a, Q, I>(&'a self, keys: I) -> impl Iterator<Item = bool> + 'a
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized + 'a,
        I: IntoIterator<Item = &'a Q, IntoIter: 'a>,
    {
        let mut keys = keys.into_iter().fuse();
        let mut answers = Answers::default();
        core::iter::from_fn(move || {
            if answers.left == 0 {
                answers = self.admit_some(&mut keys);
            }
            answers.next()
        })
    }

    /// Decides at most [`BATCH`] requests.
    #[inline]
    fn admit_some<'k, Q: Hash + ?Sized + 'k>(
        &self,
        keys: &mut impl Iterator<Item = &'k Q>,
    ) -> Answers {
        if let Some(table) = self.clients.table()
            && self.rule.action() == Action::Deny
        {
            in_words!(self.rule.limit(), limit => return self.admit_words(table, limit, keys), else ());
        }
        let now = self.clock.now();
        let decide = |key| self.decide_any(self.hasher.hash(key), Cost::ONE, now, Mode::Check);
        keys.take(BATCH).map(|key| decide(key).allowed).collect()
    }

    /// Decides at most [`BATCH`] requests whose clients' states are words. The lines of all clients
    /// are prefetched before the clock is read and before the first line is waited for.
    #[inline]
    fn admit_words<'k, A: Algorithm, Q: Hash + ?Sized + 'k>(
        &self,
        table: &Table,
        limit: &A,
        keys: &mut impl Iterator<Item = &'k Q>,
    ) -> Answers {
        let mut places = [const { None }; BATCH];
        let purpose = Purpose::of(limit.policy());
        for (place, key) in places.iter_mut().zip(keys) {
            *place = Some(table.place(self.hasher.hash(key), purpose));
        }
        let now = self.clock.now();
        let admit = |place: &Lookup<'_>| {
            let seen = place.at_home();
            let at_home =
                seen.and_then(|seen| self.swap(seen, limit, (now, false), Cost::ONE, Mode::Check));
            if let Some(verdict) = at_home {
                return verdict.allowed;
            }
            let at = (now, false);
            match self.step_once(table, limit, place.key, at, Cost::ONE, Mode::Check) {
                Some(verdict) => verdict.allowed,
                None => {
                    self.decide_any(place.key, Cost::ONE, now, Mode::Check)
                        .allowed
                }
            }
        };
        places.iter().map_while(Option::as_ref).map(admit).collect()
    }
}

impl Iterator for Answers {
    type Item = bool;

    #[inline]
    fn next(&mut self) -> Option<bool> {
        self.left = self.left.checked_sub(1)?;
        let is_allowed = self.allowed & 1 == 1;
        self.allowed >>= 1;
        Some(is_allowed)
    }
}

impl FromIterator<bool> for Answers {
    /// Collects at most [`BATCH`] answers.
    #[inline]
    fn from_iter<I: IntoIterator<Item = bool>>(answers: I) -> Self {
        let mut all = Self::default();
        for is_allowed in answers {
            all.allowed |= u32::from(is_allowed) << all.left;
            all.left += 1;
        }
        all
    }
}
