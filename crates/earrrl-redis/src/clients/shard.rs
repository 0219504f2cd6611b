//! One shard of a table: its clients, and the queues of clients that will be exchanged with Redis.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use earrrl::{Limit, Nanos, Rule};

use super::client::{Client, Lease, Urgency};
use super::lines::{At, LeaseLine, LeaseLines};

/// The most clients that are examined to find one that can be evicted.
const PROBES: usize = 16;

/// The rule of a table, and its [`Limit::lag`](earrrl::Limit::lag).
#[derive(Debug)]
pub(crate) struct NearRule {
    pub(crate) rule: Rule,
    pub(crate) lag: Duration,
}

/// The place of a client in a table. Clients are distinguished by 64 bits of a keyed hash, as in
/// the engine in memory. Their keys are kept outside of the cache line, since only exchanges with
/// Redis need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    pub(super) hash: u64,
}

/// A client that will be exchanged with Redis.
#[derive(Debug)]
pub(crate) struct QueuedClient {
    pub(crate) group: usize,
    pub(crate) key: Box<[u8]>,
}

#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Shard {
    number: usize,
    /// The rule; `None` while it is not a near rule.
    rule: Option<Arc<NearRule>>,
    /// The number of decisions that were made without a round trip to Redis.
    pub(super) decided: u64,
    /// The index of all shards; `None` before the first client.
    lines: Option<Arc<LeaseLines>>,
    entries: Vec<Entry>,
    /// The entries that are exchanged in the next round.
    urgent: Vec<u32>,
    /// The entries that are exchanged later, the first due first, each with the time by which it is
    /// due. Some may have been exchanged already, or be due earlier.
    normal: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// The index of the client at which the last search for a client to evict ended.
    hand: usize,
}

/// The part of a client that most decisions do not read.
#[derive(Debug)]
struct Entry {
    client: Client,
    hash: u64,
    key: Box<[u8]>,
}

impl Shard {
    pub(super) fn new(number: usize) -> Self {
        let entries = Vec::new();
        let urgent = Vec::new();
        let normal = BinaryHeap::new();
        let rule = None;
        let lines = None;
        Self {
            number,
            rule,
            decided: 0,
            lines,
            entries,
            urgent,
            normal,
            hand: 0,
        }
    }

    #[inline]
    fn find(&self, hash: u64) -> Option<(&LeaseLines, At)> {
        let lines = self.lines.as_deref()?;
        Some((lines, lines.find(self.number, hash)?))
    }

    pub(super) fn has(&self, place: Place) -> bool {
        self.find(place.hash).is_some()
    }

    /// Decides a request; see [`ClientTable::decide`](super::table::ClientTable::decide).
    #[inline]
    pub(super) fn decide<R>(
        &mut self,
        place: Place,
        by_lease: impl FnOnce(&NearRule, &mut Lease, usize) -> Option<R>,
        by_client: impl FnOnce(&NearRule, &mut Client) -> Option<R>,
    ) -> Option<R> {
        let rule = self.rule.as_ref()?;
        let (lines, at) = self.find(place.hash)?;
        let mut line = lines.read(at);
        let mut decision = by_lease(rule, &mut line.lease, line.group as usize);
        if decision.is_some() {
            lines.write(at, &line);
        } else {
            let rule = rule.clone();
            decision = self.with(place, |client| by_client(&rule, client))?;
            self.lease(place, rule.rule.limit());
        }
        self.decided += u64::from(decision.is_some());
        decision
    }

    /// Calls `change` with a client, and queues the client if `change` requested an exchange.
    pub(crate) fn with<R>(
        &mut self,
        place: Place,
        change: impl FnOnce(&mut Client) -> R,
    ) -> Option<R> {
        let (entry, client) = self.reclaim(place.hash)?;
        let due = client.due;
        let result = change(client);
        let is_earlier = client.queued == Urgency::Normal && client.due < due;
        if client.urgency > client.queued || is_earlier {
            client.queued = client.urgency;
            let urgency = client.urgency;
            let due = client.due;
            match urgency {
                Urgency::Urgent => self.urgent.push(entry),
                _ => self.normal.push(Reverse((due, entry))),
            }
        }
        Some(result)
    }

    /// Finds a client and ends its lease.
    fn reclaim(&mut self, hash: u64) -> Option<(u32, &mut Client)> {
        let (lines, at) = self.find(hash)?;
        let mut line = lines.read(at);
        let lease = std::mem::take(&mut line.lease);
        lines.write(at, &line);
        let client = &mut self.entries[line.entry as usize].client;
        if let Some(rule) = &self.rule {
            client.reclaim(rule.rule.limit(), lease);
        }
        Some((line.entry, client))
    }

    /// Gives the client's index line a lease, by which later requests are decided.
    fn lease(&mut self, place: Place, limit: &Limit) {
        let Some((entry, client)) = self.reclaim(place.hash) else {
            return;
        };
        let hash = place.hash;
        let group = client.group as u32;
        let line = LeaseLine {
            hash,
            entry,
            group,
            lease: client.lease(limit),
        };
        if let Some((lines, at)) = self.find(hash) {
            lines.write(at, &line);
        }
    }

    /// Replaces the rule; see [`ClientTable::set_rule`](super::table::ClientTable::set_rule).
    pub(super) fn set_rule(
        &mut self,
        rule: Option<Arc<NearRule>>,
        change: &mut impl FnMut(&mut Client),
    ) {
        // A lease must end under the same rule under which it began.
        for entry in 0..self.entries.len() {
            if let Some((_, client)) = self.reclaim(self.entries[entry].hash) {
                change(client);
            }
        }
        self.rule = rule;
    }

    pub(super) fn clear(&mut self) {
        *self = Self {
            decided: self.decided,
            ..Self::new(self.number)
        };
    }

    /// Returns the number of clients with charges that Redis lacks.
    pub(super) fn pending(&self) -> usize {
        self.entries
            .iter()
            .filter(|entry| entry.client.has_pending())
            .count()
    }

    /// Appends the clients that are due for an exchange at `now` to `taken`, and `early` others if
    /// the shard is almost full, since clients with pending charges cannot be evicted. Leases
    /// continue until the exchange.
    pub(super) fn take_due(
        &mut self,
        now: Nanos,
        early: usize,
        capacity: usize,
        taken: &mut Vec<QueuedClient>,
    ) {
        let is_almost_full = 4 * self.entries.len() >= 3 * capacity;
        for at in self.due(now, if is_almost_full { early } else { 0 }) {
            let Entry { client, key, .. } = &mut self.entries[at as usize];
            (client.urgency, client.queued) = (Urgency::None, Urgency::None);
            taken.push(QueuedClient {
                group: client.group,
                key: key.clone(),
            });
        }
    }

    /// Removes the entries that are due at `now` from the queues, and up to `early` others.
    fn due(&mut self, now: Nanos, mut early: usize) -> Vec<u32> {
        let mut due = std::mem::take(&mut self.urgent);
        due.retain(|at| {
            // A client that was exchanged by a request meanwhile is no longer queued.
            let client = &mut self.entries[*at as usize].client;
            let waits = client.queued == Urgency::Urgent;
            if waits {
                client.queued = Urgency::None;
            }
            waits
        });
        while let Some(&Reverse((by, at))) = self.normal.peek() {
            let client = &mut self.entries[at as usize].client;
            let waits = client.queued == Urgency::Normal && client.due == by;
            if waits && by > now && early == 0 {
                break;
            }
            if waits {
                early -= usize::from(by > now);
                client.queued = Urgency::None;
                due.push(at);
            }
            self.normal.pop();
        }
        due
    }

    /// Adds a client, evicting another one if necessary. Returns `None` if none can be evicted.
    /// `larger` returns an index with more lines per shard than its argument.
    pub(super) fn insert(
        &mut self,
        place: Place,
        key: &[u8],
        capacity: usize,
        larger: impl FnOnce(usize) -> Option<Arc<LeaseLines>>,
    ) -> Option<()> {
        let entry = Entry {
            hash: place.hash,
            key: key.into(),
            client: Client::default(),
        };
        let at = if self.entries.len() < capacity {
            self.grow(larger)?;
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let at = self.evictable()?;
            let evicted = std::mem::replace(&mut self.entries[at], entry);
            let (lines, line) = self.find(evicted.hash)?;
            lines.remove(self.number, line);
            at
        };
        let line = LeaseLine {
            hash: place.hash,
            entry: at as u32,
            group: 0,
            lease: Lease::default(),
        };
        self.lines.as_ref()?.insert(self.number, &line);
        Some(())
    }

    /// Moves this shard's lines to a larger index if less than an eighth of them would be free.
    fn grow(&mut self, larger: impl FnOnce(usize) -> Option<Arc<LeaseLines>>) -> Option<()> {
        let each = self.lines.as_ref().map_or(0, |lines| lines.each());
        if 8 * (self.entries.len() + 1) > 7 * each {
            let new = larger(each)?;
            // Other shards may have used the new index for some time, and so may this shard before
            // its table was cleared.
            new.clear(self.number);
            if let Some(old) = &self.lines {
                old.of(self.number)
                    .for_each(|at| new.insert(self.number, &old.read(at)));
            }
            self.lines = Some(new);
        }
        Some(())
    }

    /// Finds a client to evict: advances the clock hand to the next client without pending charges.
    fn evictable(&mut self) -> Option<usize> {
        for _ in 0..PROBES.min(self.entries.len()) {
            self.hand = (self.hand + 1) % self.entries.len();
            if self.entries[self.hand].client.is_evictable() {
                return Some(self.hand);
            }
        }
        None
    }
}
