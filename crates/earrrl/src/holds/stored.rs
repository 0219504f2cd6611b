//! The reservations of an engine in a directory, in the file of records beside the states: a later process finds
//! both or neither.
//!
//! One process at a time has the file. Others of the same directory keep their reservations in memory, and give
//! nothing back to the clients of state files, since they do not know what the first process gives back to them.
//! When that process has ended, one of them takes the file, with the reservations that are in it.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashMap;
use std::vec::Vec;

use super::record::{Record, UNPREPARED};
use super::{HeldPart, Hold, Holds};
use crate::clock::Nanos;
use crate::engine::RuleId;
use crate::hold_id::HoldId;
use crate::lock::lock;
use crate::store::file::records::{RecordFile, RecordWords};
use crate::store::{Clients, StateDirectory, StateError};

/// The time between attempts to take the file.
const AGAIN: Duration = Duration::from_secs(1);

impl Holds {
    /// Returns true if this process has the file.
    pub(crate) fn has_file(&self) -> bool {
        self.file.get().is_some()
    }

    /// Takes the file unless another process has it, at most once a second. Returns true if it was taken now: the
    /// rules that are prepared are then to be attached.
    pub(crate) fn take_file(
        &self,
        directory: &StateDirectory,
        now: Nanos,
    ) -> Result<bool, StateError> {
        if self.has_file() || now.get() < self.next_take.load(Relaxed) {
            return Ok(false);
        }
        self.next_take.store((now + AGAIN).get(), Relaxed);
        let Some((file, records)) = RecordFile::open(directory)? else {
            return Ok(false);
        };
        self.load(&file, records);
        Ok(self.file.set(file).is_ok())
    }

    /// Inserts the reservations of an earlier process. One that was not stored whole was given to nobody.
    fn load(&self, file: &RecordFile, records: Vec<(u32, RecordWords)>) {
        let mut holds: HashMap<HoldId, Vec<Record>> = HashMap::new();
        for (place, words) in records {
            let record = Record::decode(words, place);
            holds.entry(record.id).or_default().push(record);
        }
        for (id, mut records) in holds {
            records.sort_by_key(|record| record.place);
            let is_whole = |one: &Record| usize::from(one.parts) == records.len();
            if records.iter().all(is_whole) {
                self.insert_stored(id, &records);
            } else {
                let places = records.iter().filter_map(|record| record.part.record);
                places.for_each(|place| file.remove(place));
            }
        }
    }

    fn insert_stored(&self, id: HoldId, records: &[Record]) {
        // A commit marks the parts one after the other, before it gives anything back.
        let committed = records.iter().find(|record| record.is_committed);
        let Some(Record { expires, .. }) = committed.or(records.first()) else {
            return;
        };
        for record in records {
            let mut waiting = lock(&self.waiting);
            waiting.entry(record.part.name).or_default().push(id);
        }
        let is_live = committed.is_none();
        let hold = Hold {
            parts: records.iter().map(|record| record.part).collect(),
            expires: *expires,
            is_live,
        };
        let mut shard = self.lock(id);
        if is_live {
            self.live.fetch_add(1, Relaxed);
            self.expires(*expires);
            shard.insert(id, hold);
        } else {
            shard.committed.push_back((*expires, id));
            shard.holds.insert(id, hold);
        }
    }

    /// Gives the reservations of an earlier process under a rule of this name to the rule, which was prepared.
    pub(crate) fn attach(&self, name: u64, rule: RuleId, clients: &Clients) {
        let ids = lock(&self.waiting).remove(&name).unwrap_or_default();
        for id in ids {
            let mut shard = self.lock(id);
            let Some(hold) = shard.holds.get_mut(&id) else {
                continue;
            };
            let is_live = hold.is_live;
            let of_rule = |part: &&mut HeldPart| part.name == name && part.rule == UNPREPARED;
            for part in hold.parts.iter_mut().filter(of_rule) {
                part.rule = rule;
                if is_live {
                    let client = part.key.fingerprint();
                    let cost = part.reserved.held.cost;
                    let changes = clients.changes(part.key);
                    let live = &mut part.reserved.live;
                    *live = clients.live().adopt(client, *live, cost, changes);
                }
            }
        }
    }

    /// Writes the parts of a reservation to the file, if this process has it.
    pub(super) fn write(
        &self,
        id: HoldId,
        parts: &mut [HeldPart],
        expires: Nanos,
        is_committed: bool,
    ) {
        let Some(file) = self.file.get() else { return };
        let count = parts.len() as u8;
        for (place, part) in parts.iter_mut().enumerate() {
            let record = Record {
                id,
                is_committed,
                expires,
                parts: count,
                place: place as u8,
                part: *part,
            };
            let words = record.encode();
            match part.record {
                Some(place) => file.write(place, &words),
                None => part.record = Some(file.add(&words)),
            }
        }
    }

    /// Removes the parts of a reservation from the file.
    pub(super) fn erase(&self, parts: &[HeldPart]) {
        if let Some(file) = self.file.get() {
            let places = parts.iter().filter_map(|part| part.record);
            places.for_each(|place| file.remove(place));
        }
    }
}
