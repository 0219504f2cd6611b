//! A survey of a rule's clients: the clients with the highest rates, and the distribution of rates.

mod names;
mod rates;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::HashSet;
use std::vec::Vec;

pub use names::{Name, NameOptions, Names};
pub use rates::{Above, RateBucket, Rates};

use crate::algorithm::{Limit, Mode, State};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::Wait;
use crate::rule::Rule;
use crate::store::table::Word;
use crate::store::{Clients, Passed};

/// The result of one walk over the clients of a rule.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The instant that the figures refer to.
    pub at: Nanos,
    /// The clients with the highest usage of their limit, the highest first.
    pub top: Vec<TopClient>,
    /// The distribution of the clients' rates.
    pub rates: Rates,
}

/// One of the clients with the highest rates.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TopClient {
    /// The fingerprint of the client's key; see [`KeyHash::fingerprint`](crate::internal::table::KeyHash::fingerprint).
    pub fingerprint: u64,
    /// The client's usage relative to the limit: 1 at the limit, more above it. It is the rate
    /// relative to the limit, or the share of a bucket that is used.
    pub usage: f64,
    /// The measured rate in cost units per second; `None` for token-bucket and gcra.
    pub rate: Option<f64>,
    /// The rate that the rule allows.
    pub limit: f64,
    /// The number of requests of cost 1 that would be allowed now in sequence.
    pub remaining: u64,
    /// The shortest wait after which a request of cost 1 is allowed.
    pub retry_after: Wait,
    /// The wait until the client's past requests no longer affect decisions.
    pub reset_after: Duration,
}

impl TopClient {
    fn new(client: Found, now: Nanos) -> Self {
        let state = Some(client.state);
        let (_, allowed, figures) = client.limit.step(state, now, Cost::ONE, Mode::Peek);
        Self {
            fingerprint: client.fingerprint,
            usage: client.usage,
            rate: figures.rate,
            limit: figures.limit,
            remaining: figures.remaining,
            retry_after: if allowed {
                Wait::NONE
            } else {
                figures.earliest
            },
            reset_after: figures.reset_after,
        }
    }
}

impl Survey {
    /// Walks over the clients of a rule, and reports the `count` highest. A client that is met twice is
    /// reported once.
    pub(crate) fn of(clients: &Clients, rule: &Rule, now: Nanos, count: usize) -> Self {
        let limit = rule.limit();
        let mut highest = Highest::new(count);
        let mut rates = Rates::default();
        clients.walk(limit, now, |passed| {
            // An idle client is stored until its place is needed.
            if passed.usage <= 0.0 {
                return;
            }
            rates.add(passed.usage * passed.limit.per_second());
            highest.offer(&passed);
        });
        let top = highest.into_sorted().into_iter();
        Self {
            at: now,
            top: top.map(|client| TopClient::new(client, now)).collect(),
            rates,
        }
    }
}

/// A client that may be among the highest.
struct Found {
    fingerprint: u64,
    usage: f64,
    limit: Limit,
    state: State,
    word: Word,
}

/// The clients with the highest usage, in memory for twice as many as are wanted.
struct Highest {
    count: usize,
    found: Vec<Found>,
    /// The usage below which no client is among the highest.
    least: f64,
}

impl Highest {
    fn new(count: usize) -> Self {
        Self {
            count,
            found: Vec::new(),
            least: 0.0,
        }
    }

    /// Keeps a client if it may be among the highest.
    #[inline]
    fn offer(&mut self, passed: &Passed<'_>) {
        if passed.usage < self.least {
            return;
        }
        self.found.push(Found {
            fingerprint: passed.fingerprint,
            usage: passed.usage,
            limit: *passed.limit,
            state: passed.state.clone(),
            word: passed.word,
        });
        if self.found.len() > self.count.saturating_mul(2) {
            self.sort();
            self.found.truncate(self.count);
            self.least = self.found.last().map_or(f64::MAX, |lowest| lowest.usage);
        }
    }

    /// Sorts the clients, the highest first. Words order clients whose usage is too high for a double.
    fn sort(&mut self) {
        self.found.sort_unstable_by(|a, b| {
            let by_usage = b.usage.total_cmp(&a.usage);
            by_usage.then_with(|| b.word.cmp(&a.word))
        });
    }

    /// Returns the selected clients, the highest first, each once.
    fn into_sorted(mut self) -> Vec<Found> {
        self.sort();
        self.found.truncate(self.count);
        let mut seen = HashSet::new();
        self.found.retain(|one| seen.insert(one.fingerprint));
        self.found
    }
}
