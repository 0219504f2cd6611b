//! Receipts, which show if a call without an answer was executed.
//!
//! Each node has a string in Redis for its receipts. A call that stores a charge also writes its
//! number and the time to a place in that string, in the same script. Only one call uses a place at
//! a time, so the number found there later shows if that call was executed, in whatever order the
//! calls were. Free places are reused, so the string has twelve bytes for each call that was ever
//! in flight at the same time.
//!
//! On a Cluster, a node has such a string in each slot that it uses, at most 1024. A node with a
//! configured name uses the strings of its earlier processes again. Their entries have other numbers,
//! since every process begins with numbers of its own.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use earrrl::Nanos;
use earrrl::internal::lock;

use crate::algorithm::{Fields, nanos};
use crate::key::{Keys, place_of};

/// The most calls of a slot that have a receipt at the same time; further calls have none.
const MAX_RECEIPTS: usize = 4096;
/// The length of an entry in bytes: a number, a bit for each stored charge, and the microsecond of
/// the call.
const ENTRY: usize = 12;
/// The length in bytes of the part of an entry that the call's argument contains.
const HEAD: usize = 4;
/// The interval at which the expiry of the strings is renewed. They expire two hours after the last
/// call of their node.
const PROLONGED: Duration = Duration::from_secs(600);
/// The flag that makes a script renew the expiry.
const PROLONGS: u8 = 8;
/// The time for which calls have no receipts after their slot was found to be moving between
/// shards.
const MOVING: Duration = Duration::from_secs(1);

/// The receipts of this node.
#[derive(Debug)]
pub(crate) struct Receipts {
    slots: Box<[Mutex<SlotPlaces>]>,
}

/// The places in the string of one slot.
#[derive(Debug)]
struct SlotPlaces {
    key: Arc<str>,
    /// The number that was last used at each place, never 0.
    numbers: Vec<u16>,
    free: VecDeque<u16>,
    prolonged: Option<Instant>,
    moving: Option<Instant>,
}

/// A place that is reserved for a call until it is known if the call was executed.
#[derive(Debug)]
pub(crate) struct Receipt {
    receipts: Arc<Receipts>,
    slot: u16,
    place: u16,
    number: u16,
    pub(crate) key: Arc<str>,
    prolongs: bool,
}

impl Receipts {
    /// Returns the receipts of the node with this name, or of a node with a random name.
    pub(crate) fn new(keys: &Keys, node: Option<&str>) -> Self {
        let random = || format!("{:016x}", RandomState::new().hash_one(()));
        let node = node.map_or_else(random, str::to_owned);
        let places = |tag: &u32| {
            Mutex::new(SlotPlaces {
                key: keys.receipts(*tag, &node).into(),
                numbers: Vec::new(),
                free: VecDeque::new(),
                prolonged: None,
                moving: None,
            })
        };
        Self {
            slots: keys.receipt_tags().iter().map(places).collect(),
        }
    }

    /// Reserves a place for a call. Returns `None` if too many are in use, or if the slot is
    /// moving.
    pub(crate) fn take(self: &Arc<Self>, slot: u16) -> Option<Receipt> {
        let mut places = self.lock(slot);
        if places.moving.is_some_and(|since| since.elapsed() < MOVING) {
            return None;
        }
        let place = places.free.pop_front().or_else(|| places.new_place())?;
        let number = &mut places.numbers[usize::from(place)];
        *number = number.checked_add(1).unwrap_or(1);
        let number = *number;
        let prolongs = places.prolonged.is_none_or(|at| at.elapsed() > PROLONGED);
        Some(Receipt {
            receipts: self.clone(),
            slot,
            place,
            number,
            key: places.key.clone(),
            prolongs,
        })
    }

    /// Notes that a slot is moving between shards, which then reject calls with several keys.
    pub(crate) fn moves(&self, slot: u16) {
        self.lock(slot).moving = Some(Instant::now());
    }

    fn lock(&self, slot: u16) -> MutexGuard<'_, SlotPlaces> {
        lock(&self.slots[place_of(slot) % self.slots.len()])
    }
}

impl SlotPlaces {
    fn new_place(&mut self) -> Option<u16> {
        let place = self.numbers.len();
        let first = RandomState::new().hash_one(place) as u16;
        (place < MAX_RECEIPTS).then(|| self.numbers.push(first))?;
        u16::try_from(place).ok()
    }
}

impl Receipt {
    /// Returns a receipt as an argument of a script: its entry and its place. The receipt's key is
    /// the call's last key.
    pub(crate) fn argument(receipt: Option<&Self>) -> Vec<u8> {
        let Some(receipt) = receipt else {
            return [0; HEAD + 1].to_vec();
        };
        let place = (usize::from(receipt.place) * ENTRY).to_string();
        let [low, high] = receipt.number.to_le_bytes();
        // The bit of the first charge, which is the only charge of a request under one rule.
        let mut argument = vec![low, high, 1, 0];
        argument.push(place.len() as u8);
        argument.extend(place.as_bytes());
        argument
    }

    /// Returns the flags that a receipt adds to the flags of its call.
    pub(crate) fn flags(receipt: Option<&Self>) -> u8 {
        receipt
            .filter(|receipt| receipt.prolongs)
            .map_or(0, |_| PROLONGS)
    }

    /// Notes that the receipt's call was answered. If the call stored a charge, it has also renewed
    /// the expiry if it was asked to.
    pub(crate) fn answered(&self, stored: bool) {
        if stored && self.prolongs {
            self.receipts.lock(self.slot).prolonged = Some(Instant::now());
        }
    }

    /// Returns the charges that the receipt's call stored, one bit each, and the time of the call by Redis's clock,
    /// given the node's receipts in Redis; `None` if the call was not executed.
    pub(crate) fn stored(&self, receipts: &[u8]) -> Option<(u16, Nanos)> {
        let from = usize::from(self.place) * ENTRY;
        let mut entry = Fields(receipts.get(from..from + ENTRY)?);
        let (number, charges, at) = (entry.whole(2)?, entry.whole(2)?, nanos(entry.number()?));
        (number == u64::from(self.number)).then_some((charges as u16, at))
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.receipts.lock(self.slot).free.push_back(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{ClientKeys, slot};

    fn receipts() -> Arc<Receipts> {
        Arc::new(Receipts::new(
            &Keys::new("earrrl", ClientKeys::Escaped, false),
            None,
        ))
    }

    /// Writes an entry in the way that scripts do.
    fn executed(receipt: &Receipt, string: &mut Vec<u8>) {
        let argument = Receipt::argument(Some(receipt));
        let (length, place) = argument[4..].split_first().unwrap();
        assert_eq!(usize::from(*length), place.len());
        let place = std::str::from_utf8(place)
            .unwrap()
            .parse::<usize>()
            .unwrap();
        string.resize(string.len().max(place + ENTRY), 0);
        string[place..place + HEAD].copy_from_slice(&argument[..HEAD]);
        string[place + HEAD..place + ENTRY].copy_from_slice(&1e15f64.to_le_bytes());
    }

    #[test]
    fn a_number_at_a_place_tells_of_one_call() {
        let receipts = receipts();
        let mut string = Vec::new();
        let [one, two, three] = [(); 3].map(|()| receipts.take(7).unwrap());
        executed(&three, &mut string);
        executed(&one, &mut string);
        let stored = Some((1, Nanos::from_secs(1_000_000_000)));
        let found = [&one, &two, &three].map(|receipt| receipt.stored(&string));
        assert_eq!(found, [stored, None, stored]);
        drop(one);
        let again = receipts.take(7).unwrap();
        assert_eq!(
            (again.place, again.stored(&string)),
            (0, None),
            "the place of an earlier call"
        );
        executed(&again, &mut string);
        assert_eq!((again.stored(&string), again.stored(&[])), (stored, None));
    }

    #[test]
    fn places_are_bounded_and_return() {
        let receipts = receipts();
        let mut taken: Vec<_> = (0..MAX_RECEIPTS)
            .map(|_| receipts.take(0).unwrap())
            .collect();
        assert!(receipts.take(0).is_none());
        taken.pop();
        assert!(receipts.take(0).is_some());
    }

    #[test]
    fn a_cluster_has_receipts_in_the_slot_of_each_record() {
        let keys = Keys::new("earrrl", ClientKeys::Escaped, true);
        let receipts = Arc::new(Receipts::new(&keys, Some("edge-1")));
        for client in 0..5000u32 {
            let record = keys.record(&client.to_le_bytes(), "login");
            let receipt = receipts.take(slot(&record)).unwrap();
            assert_eq!(
                slot(receipt.key.as_bytes()),
                slot(&record),
                "{}",
                receipt.key
            );
            assert!(receipt.key.ends_with(":edge-1"), "{}", receipt.key);
        }
    }
}
