//! One shard of a table: its clients, and the lists of those that are to be exchanged.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use earrrl::{Limit, Nanos, Rule};

use super::client::{Client, Due, Loan};
use super::lines::{At, Line, Lines};

/// Clients that are looked at for one that may go.
const LOOKS: usize = 16;

/// The rule, as decisions at once go by it; and see [`Limit::lag`](earrrl::Limit::lag).
#[derive(Debug)]
pub(crate) struct NearRule {
    pub(crate) rule: Rule,
    pub(crate) lag: Duration,
}

/// Where a client is. Clients are told apart by the 64 bits of a keyed hash, as in the engine in memory: their
/// keys are farther away, and only needed for Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    pub(super) hash: u64,
}

/// A client that is to be exchanged.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) group: usize,
    pub(crate) key: Box<[u8]>,
}

#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Shard {
    number: usize,
    /// None while the rule is not near.
    rule: Option<Arc<NearRule>>,
    /// How many decisions were made at once.
    pub(super) decided: u64,
    /// Of all shards. None before the first client.
    lines: Option<Arc<Lines>>,
    entries: Vec<Entry>,
    /// Those to be exchanged next.
    soon: Vec<u32>,
    /// Those to be exchanged sometime, and since when; some of them were meanwhile.
    waiting: VecDeque<(u32, Nanos)>,
    /// Where the next that may go is looked for.
    hand: usize,
}

/// What few decisions need of a client.
#[derive(Debug)]
struct Entry {
    client: Client,
    hash: u64,
    key: Box<[u8]>,
}

impl Shard {
    pub(super) fn new(number: usize) -> Self {
        let (entries, soon, waiting) = (Vec::new(), Vec::new(), VecDeque::new());
        let (rule, lines) = (None, None);
        Self { number, rule, decided: 0, lines, entries, soon, waiting, hand: 0 }
    }

    #[inline]
    fn find(&self, hash: u64) -> Option<(&Lines, At)> {
        let lines = self.lines.as_deref()?;
        Some((lines, lines.find(self.number, hash)?))
    }

    pub(super) fn has(&self, place: Place) -> bool {
        self.find(place.hash).is_some()
    }

    /// See [`Table::decide`](super::table::Table::decide).
    #[inline]
    pub(super) fn decide<R>(
        &mut self,
        place: Place,
        lent: impl FnOnce(&NearRule, &mut Loan, usize) -> Option<R>,
        itself: impl FnOnce(&NearRule, &mut Client) -> Option<R>,
    ) -> Option<R> {
        let rule = self.rule.as_ref()?;
        let (lines, at) = self.find(place.hash)?;
        let mut line = lines.read(at);
        let mut decision = lent(rule, &mut line.loan, line.group as usize);
        if decision.is_some() {
            lines.write(at, &line);
        } else {
            let rule = rule.clone();
            decision = self.with(place, |client| itself(&rule, client))?;
            self.lend(place, rule.rule.limit());
        }
        self.decided += u64::from(decision.is_some());
        decision
    }

    /// Does something with a client, and puts it on the list where that asks for it.
    pub(crate) fn with<R>(
        &mut self,
        place: Place,
        change: impl FnOnce(&mut Client) -> R,
    ) -> Option<R> {
        let (entry, client) = self.whole(place.hash)?;
        let result = change(client);
        if client.due > client.listed {
            client.listed = client.due;
            let since = client.since;
            match client.due {
                Due::Soon => self.soon.push(entry),
                _ => self.waiting.push_back((entry, since)),
            }
        }
        Some(result)
    }

    /// A client with all that it had lent.
    fn whole(&mut self, hash: u64) -> Option<(u32, &mut Client)> {
        let (lines, at) = self.find(hash)?;
        let mut line = lines.read(at);
        let loan = std::mem::take(&mut line.loan);
        lines.write(at, &line);
        let client = &mut self.entries[line.entry as usize].client;
        if let Some(rule) = &self.rule {
            client.get_back(rule.rule.limit(), loan);
        }
        Some((line.entry, client))
    }

    fn lend(&mut self, place: Place, limit: &Limit) {
        let Some((entry, client)) = self.whole(place.hash) else { return };
        let (hash, group) = (place.hash, client.group as u32);
        let line = Line { hash, entry, group, loan: client.lend(limit) };
        if let Some((lines, at)) = self.find(hash) {
            lines.write(at, &line);
        }
    }

    /// See [`Table::set_rule`](super::table::Table::set_rule).
    pub(super) fn set_rule(
        &mut self,
        rule: Option<Arc<NearRule>>,
        change: &mut impl FnMut(&mut Client),
    ) {
        // What is on loan comes back under the rule that it was lent under.
        for entry in 0..self.entries.len() {
            if let Some((_, client)) = self.whole(self.entries[entry].hash) {
                change(client);
            }
        }
        self.rule = rule;
    }

    pub(super) fn clear(&mut self) {
        *self = Self { decided: self.decided, ..Self::new(self.number) };
    }

    pub(super) fn owed(&self) -> usize {
        self.entries.iter().filter(|entry| entry.client.owes()).count()
    }

    /// What they have lent stays so until they are called.
    pub(super) fn take_due(&mut self, by: Nanos, many: usize, taken: &mut Vec<Listed>) {
        for at in self.due(by, many) {
            let Entry { client, key, .. } = &mut self.entries[at as usize];
            (client.due, client.listed) = (Due::Never, Due::Never);
            taken.push(Listed { group: client.group, key: key.clone() });
        }
    }

    /// Those of the lists that are to be exchanged now.
    fn due(&mut self, by: Nanos, mut many: usize) -> Vec<u32> {
        let mut due = std::mem::take(&mut self.soon);
        while let Some(&(at, since)) = self.waiting.front() {
            let client = &mut self.entries[at as usize].client;
            let waits = client.listed == Due::Sometime && client.since == since;
            if waits && since > by && many == 0 {
                break;
            }
            if waits {
                many = many.saturating_sub(1);
                client.listed = Due::Never;
                due.push(at);
            }
            self.waiting.pop_front();
        }
        due
    }

    /// Makes room for a client, if there is any; `larger` answers more lines for each shard than so many.
    pub(super) fn insert(
        &mut self,
        place: Place,
        key: &[u8],
        room: usize,
        larger: impl FnOnce(usize) -> Option<Arc<Lines>>,
    ) -> Option<()> {
        let entry = Entry { hash: place.hash, key: key.into(), client: Client::default() };
        let at = if self.entries.len() < room {
            self.grow(larger)?;
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let at = self.one_that_may_go()?;
            let gone = std::mem::replace(&mut self.entries[at], entry);
            let (lines, line) = self.find(gone.hash)?;
            lines.remove(self.number, line);
            at
        };
        let line = Line { hash: place.hash, entry: at as u32, group: 0, loan: Loan::default() };
        self.lines.as_ref()?.insert(self.number, &line);
        Some(())
    }

    /// Moves to more lines where less than an eighth of them would be free.
    fn grow(&mut self, larger: impl FnOnce(usize) -> Option<Arc<Lines>>) -> Option<()> {
        let each = self.lines.as_ref().map_or(0, |lines| lines.each());
        if 8 * (self.entries.len() + 1) > 7 * each {
            let new = larger(each)?;
            // Other shards may have lived in it for long, and this one before all was forgotten.
            new.clear(self.number);
            if let Some(old) = &self.lines {
                old.of(self.number).for_each(|at| new.insert(self.number, &old.read(at)));
            }
            self.lines = Some(new);
        }
        Some(())
    }

    fn one_that_may_go(&mut self) -> Option<usize> {
        for _ in 0..LOOKS.min(self.entries.len()) {
            self.hand = (self.hand + 1) % self.entries.len();
            if self.entries[self.hand].client.is_settled() {
                return Some(self.hand);
            }
        }
        None
    }
}
