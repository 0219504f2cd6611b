//! A survey of a rule's clients: the clients with the highest rates, and the distribution of rates.

mod names;
mod rates;
#[cfg(test)]
mod tests;
mod top;

use core::time::Duration;
use std::sync::Arc;
use std::vec::Vec;

pub use names::{Name, NameOptions, Names};
pub use rates::{Above, RateBucket, Rates};
use top::Highest;

use crate::algorithm::{Limit, State};
use crate::clock::Nanos;
use crate::decision::{Figures, Wait};
use crate::rule::Rule;
use crate::store::file::predecessor::Predecessor;
use crate::store::{Clients, Next};

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
    /// The fingerprint of the client's key; see [`KeyHash::fingerprint`](crate::table::KeyHash::fingerprint).
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
    fn new(fingerprint: u64, usage: f64, (allowed, figures): (bool, Figures)) -> Self {
        Self {
            fingerprint,
            usage,
            rate: figures.rate,
            limit: figures.limit,
            remaining: figures.remaining,
            retry_after: if allowed {
                Wait::NONE
            } else {
                figures.retry_after
            },
            reset_after: figures.reset_after,
        }
    }
}

/// A store of clients to walk over, and the limit of its states.
#[derive(Clone, Copy)]
pub(crate) struct SurveySource<'a> {
    pub(crate) clients: &'a Clients,
    pub(crate) limit: &'a Limit,
}

impl Survey {
    /// Walks over the clients of a rule, also over those in other generations of its file; see
    /// [`take`](Self::take).
    pub(crate) fn of(clients: &Clients, rule: &Rule, now: Nanos, count: usize) -> Self {
        if let Some(Next { rule, clients }) = clients.follow(rule) {
            return Self::of(clients, rule, now, count);
        }
        let earlier = clients.file().and_then(|file| file.predecessors().clone());
        let earlier = earlier.unwrap_or_default();
        // Under another algorithm, clients begin afresh.
        let is_of_now = |one: &&Arc<Predecessor>| rule.limit().is_of_the_algorithm_of(&one.limit);
        let earlier = earlier.iter().rev().filter(is_of_now);
        let mut sources: Vec<_> = earlier
            .map(|one| SurveySource {
                clients: &one.clients,
                limit: &one.limit,
            })
            .collect();
        sources.push(SurveySource {
            clients,
            limit: rule.limit(),
        });
        Self::take(&sources, rule.limit(), now, count)
    }

    /// Walks over the clients of `sources`, the oldest store first, and reports the `count` highest
    /// under the present limit. Clients move from older to newer stores, so in this order none is
    /// missed; a client that is met twice is reported once.
    pub(crate) fn take(
        sources: &[SurveySource<'_>],
        limit: &Limit,
        now: Nanos,
        count: usize,
    ) -> Self {
        let mut highest = Highest::new(count);
        let mut rates = Rates::default();
        for (nth, source) in sources.iter().enumerate() {
            source.clients.walk(source.limit, now, |passed| {
                // An idle client is stored until its place is needed.
                if passed.usage <= 0.0 {
                    return;
                }
                rates.add(passed.usage * passed.per_second);
                highest.offer(nth, passed);
            });
        }
        let figures = |nth: usize, held| {
            let SurveySource {
                clients,
                limit: old,
            } = sources[nth];
            let convert = |state: State| limit.convert(old, state, now);
            clients.figures(held, old, now, convert, limit)
        };
        let top = highest.into_sorted().into_iter().filter_map(|one| {
            Some(TopClient::new(
                one.fingerprint,
                one.usage,
                figures(one.source, one.held)?,
            ))
        });
        Self {
            at: now,
            top: top.collect(),
            rates,
        }
    }
}
