//! A part of a reservation as a record in the file of reservations: its numbers, one after the other.

use super::HeldPart;
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::engine::RuleId;
use crate::held::Held;
use crate::hold_id::HoldId;
use crate::rules::reserve::Reserved;
use crate::store::LiveHold;
use crate::store::file::records::RecordWords;
use crate::store::table::KeyHash;

/// The rule of a part that was read from the file, until the rule is prepared.
pub(super) const UNPREPARED: RuleId = RuleId(u32::MAX);

/// A part of a reservation with what concerns all of its parts.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) id: HoldId,
    pub(super) is_committed: bool,
    /// The instant at which a live reservation expires, and a committed one is forgotten.
    pub(super) expires: Nanos,
    /// The number of parts, and the place of this one.
    pub(super) parts: u8,
    pub(super) place: u8,
    pub(super) part: HeldPart,
}

impl Record {
    pub(super) fn encode(&self) -> RecordWords {
        let HeldPart {
            name,
            key,
            reserved:
                Reserved {
                    held,
                    live,
                    is_stored,
                },
            ..
        } = &self.part;
        let numbers = [
            self.id.bits(),
            held.cost.billionths(),
            live.others.billionths(),
        ];
        let [id, cost, others] = numbers.map(|number| [number as u64, (number >> 64) as u64]);
        let flags = [
            u8::from(self.is_committed),
            u8::from(*is_stored),
            u8::from(live.is_foreign),
            self.parts,
            self.place,
            0,
            0,
            0,
        ];
        [
            id[0],
            id[1],
            cost[0],
            cost[1],
            others[0],
            others[1],
            *name,
            key.bits(),
            live.store,
            live.changes,
            held.at.get(),
            held.full_at.get(),
            self.expires.get(),
            u64::from_le_bytes(flags),
        ]
    }

    /// Reads a record, whose checksum is right.
    pub(super) fn decode(words: RecordWords, record: u32) -> Self {
        let [
            i0,
            i1,
            c0,
            c1,
            o0,
            o1,
            name,
            key,
            store,
            changes,
            at,
            full_at,
            expires,
            flags,
        ] = words;
        let wide = |low: u64, high: u64| u128::from(high) << 64 | u128::from(low);
        let [is_committed, is_stored, is_foreign, parts, place, ..] = flags.to_le_bytes();
        let others = Cost::from_billionths(wide(o0, o1));
        let reserved = Reserved {
            held: Held {
                at: Nanos::new(at),
                cost: Cost::from_billionths(wide(c0, c1)),
                full_at: Nanos::new(full_at),
            },
            live: LiveHold::stored(store, changes, others, is_foreign != 0),
            is_stored: is_stored != 0,
        };
        Self {
            id: HoldId::from_bits(wide(i0, i1)),
            is_committed: is_committed != 0,
            expires: Nanos::new(expires),
            parts,
            place,
            part: HeldPart {
                rule: UNPREPARED,
                name,
                key: KeyHash::from_bits(key),
                reserved,
                record: Some(record),
            },
        }
    }
}
