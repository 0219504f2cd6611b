//! The names of the clients that are limited, or close to it, in bounded memory.

use core::time::Duration;
use std::boxed::Box;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};
use std::vec::Vec;

use super::TopClient;
use crate::algorithm::{Limit, Mode};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Decision, Wait};
use crate::lock::lock;
use crate::store::table::KeyHash;

/// The least number of names in a shard of a full directory. An eviction compares the rates of one shard, so larger
/// shards would make a flood of denied clients expensive.
const SHARD: usize = 64;

/// The bounds of a directory of names; see [`Names`].
///
/// ```
/// use earrrl::internal::NameOptions;
///
/// let mut options = NameOptions::default();
/// options.capacity = 1000;
/// options.from = 0.5; // clients that use half of their limit
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct NameOptions {
    /// The usage relative to the limit above which an allowed client is named, from 0 to 1. Denied
    /// clients are always named. 0.5 by default.
    pub from: f64,
    /// The greatest number of names; 10 000 by default.
    pub capacity: usize,
    /// The greatest number of bytes of a name; the rest is cut off. 256 by default.
    pub max_bytes: usize,
}

impl NameOptions {
    /// Returns the number of remaining requests below which a client of this limit is named.
    ///
    /// ```
    /// # use earrrl::Rule;
    /// # use earrrl::internal::NameOptions;
    /// let rule: Rule = "gcra 1/s burst=10".parse()?;
    /// assert_eq!(NameOptions::default().remaining_below(rule.limit()), 5);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    #[must_use]
    pub fn remaining_below(&self, limit: &Limit) -> u64 {
        let (_, _, idle) = limit.step(None, Nanos::ZERO, Cost::ZERO, Mode::Peek);
        ((1.0 - self.from.clamp(0.0, 1.0)) * idle.remaining as f64).ceil() as u64
    }
}

impl Default for NameOptions {
    fn default() -> Self {
        Self {
            from: 0.5,
            capacity: 10_000,
            max_bytes: 256,
        }
    }
}

/// A directory of names beside the table of a rule, which stores hashes only.
///
/// It has the clients that were denied, or allowed above a share of their limit. Names are kept in
/// groups of at least 64; if a group is full, its client with the lowest rate is dropped. So of as many
/// clients as the capacity, about 5 % have no name. An allowed client below that share is not to be noted.
///
/// ```
/// use earrrl::{Charge, Cost, Engine, MemoryEngine, Mode, Rule};
/// use earrrl::internal::{NameOptions, Names};
///
/// let engine = MemoryEngine::new(10_000)?;
/// let login: Rule = "gcra 1/s burst=2".parse()?;
/// let rule = engine.prepare("login", &login)?;
/// let names = Names::new(login.limit(), NameOptions::default());
/// for _ in 0..3 {
///     let charge = Charge { rule, key: b"alice", cost: Cost::ONE };
///     let decision = engine.decide(&[charge], Mode::Check, None).into_inner()?;
///     if decision.remaining < NameOptions::default().remaining_below(login.limit()) {
///         names.note(engine.hash(b"alice"), login.limit(), &decision, || b"alice".to_vec());
///     }
/// }
/// let top = engine.survey(rule, 10)?.top;
/// let alice = names.get(top[0].fingerprint).ok_or("no name")?;
/// assert_eq!((&*alice.name, alice.allowed, alice.denied), (&b"alice"[..], 1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Names {
    options: NameOptions,
    /// The averaging time of the limit, by which past usage decays in the order of clients, as the
    /// bits of seconds.
    period: AtomicU64,
    shards: Box<[Mutex<Shard>]>,
}

/// A named client, with the counts since it was named.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Name {
    /// The name, at most [`NameOptions::max_bytes`] of it.
    pub name: Box<[u8]>,
    /// True if the name was cut off.
    pub is_cut: bool,
    /// The number of allowed requests above the share from which clients are named.
    pub allowed: u64,
    /// The number of requests over the limit.
    pub denied: u64,
    /// The instant at which the client was named.
    pub first_seen: Nanos,
    /// The instant of the first request over the limit since then.
    pub first_denied: Option<Nanos>,
    /// The instant of the latest request over the limit.
    pub last_denied: Option<Nanos>,
    /// The latest decision that was noted.
    pub latest: Decision,
    /// The usage of the limit at that decision.
    pub usage: f64,
}

/// The names whose fingerprints share certain bits, by their fingerprints.
type Shard = HashMap<u64, Entry>;

/// A name, and its place in the order of the clients; see [`Names::rank`].
struct Entry {
    rank: f64,
    name: Name,
}

impl Names {
    /// Returns an empty directory for the clients of a limit.
    #[must_use]
    pub fn new(limit: &Limit, options: NameOptions) -> Self {
        let shards = (options.capacity / SHARD).max(1);
        let names = Self {
            options,
            period: AtomicU64::new(0),
            shards: (0..shards).map(|_| Mutex::default()).collect(),
        };
        names.set_limit(limit);
        names
    }

    /// Adapts the directory to a changed limit.
    pub fn set_limit(&self, limit: &Limit) {
        self.period
            .store(limit.allowance().1.max(1e-3).to_bits(), Relaxed);
    }

    /// Notes a decision under one rule on a client's request. `name` is called if the client is
    /// not named yet.
    #[cold]
    #[inline(never)]
    pub fn note(
        &self,
        client: KeyHash,
        limit: &Limit,
        decision: &Decision,
        name: impl FnOnce() -> Vec<u8>,
    ) {
        let usage = limit.usage_of(decision.rate, decision.reset_after);
        let rank = self.rank(usage, decision.at);
        let fingerprint = client.fingerprint();
        let mut shard = self.shard(fingerprint);
        if !shard.contains_key(&fingerprint) {
            if shard.len() >= self.shard_capacity() && !drop_lowest(&mut shard, rank) {
                return;
            }
            let name = self.new_name(name(), decision, usage);
            shard.insert(fingerprint, Entry { rank, name });
        }
        if let Some(entry) = shard.get_mut(&fingerprint) {
            entry.rank = rank;
            entry.name.count(decision, usage);
        }
    }

    /// Returns the name of the client with this fingerprint.
    #[must_use]
    pub fn get(&self, fingerprint: u64) -> Option<Name> {
        let shard = self.shard(fingerprint);
        Some(shard.get(&fingerprint)?.name.clone())
    }

    /// Drops the name of a client that was reset.
    pub fn forget(&self, client: KeyHash) {
        let fingerprint = client.fingerprint();
        self.shard(fingerprint).remove(&fingerprint);
    }

    /// Returns the `count` named clients with the highest usage, as far as it is known from the
    /// decisions that were noted, each with its fingerprint.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<(u64, Name)> {
        let mut all: Vec<(f64, u64)> = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            all.extend(shard.iter().map(|(client, entry)| (entry.rank, *client)));
        }
        all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let named = |(_, fingerprint): (f64, u64)| Some((fingerprint, self.get(fingerprint)?));
        all.into_iter().take(count).filter_map(named).collect()
    }

    /// Returns a number by which clients are ordered. The usage decays by the limit's own time, so
    /// that the order of two clients does not depend on the present time; under recent-average it
    /// is exactly the order of their rates.
    fn rank(&self, usage: f64, at: Nanos) -> f64 {
        let period = f64::from_bits(self.period.load(Relaxed));
        at.get() as f64 / 1e9 / period + usage.clamp(1e-12, 1e300).ln()
    }

    fn shard(&self, fingerprint: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(fingerprint >> 1) as usize % self.shards.len()])
    }

    fn shard_capacity(&self) -> usize {
        self.options.capacity / self.shards.len()
    }

    fn new_name(&self, mut name: Vec<u8>, decision: &Decision, usage: f64) -> Name {
        let is_cut = name.len() > self.options.max_bytes;
        name.truncate(self.options.max_bytes);
        Name {
            name: name.into(),
            is_cut,
            allowed: 0,
            denied: 0,
            first_seen: decision.at,
            first_denied: None,
            last_denied: None,
            latest: *decision,
            usage,
        }
    }
}

impl Name {
    /// Returns the client's figures as of its latest decision, with the time since then taken off
    /// its waits. They are all that is known of a client whose state another store has.
    #[must_use]
    pub fn as_top(&self, fingerprint: u64, now: Nanos) -> TopClient {
        let latest = &self.latest;
        let elapsed = Duration::from_nanos(now.get().saturating_sub(latest.at.get()));
        TopClient {
            fingerprint,
            usage: self.usage,
            rate: latest.rate,
            limit: latest.limit,
            remaining: latest.remaining,
            retry_after: match latest.earliest() {
                Wait::For(wait) => Wait::For(wait.saturating_sub(elapsed)),
                Wait::Never => Wait::Never,
            },
            reset_after: latest.reset_after.saturating_sub(elapsed),
        }
    }

    fn count(&mut self, decision: &Decision, usage: f64) {
        if decision.is_over(0) {
            self.denied += 1;
            self.first_denied = self.first_denied.or(Some(decision.at));
            self.last_denied = Some(decision.at);
        } else {
            self.allowed += 1;
        }
        (self.latest, self.usage) = (*decision, usage);
    }
}

/// Drops the name with the lowest rank for one of this rank. Returns false if that would be the lowest itself.
fn drop_lowest(shard: &mut Shard, rank: f64) -> bool {
    let lowest = shard.iter().min_by(|a, b| a.1.rank.total_cmp(&b.1.rank));
    let lowest = lowest.filter(|(_, lowest)| lowest.rank <= rank);
    let client = lowest.map(|(client, _)| *client);
    client.is_some_and(|client| shard.remove(&client).is_some())
}

impl core::fmt::Debug for Names {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Names")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
