//! Receipts: whether a call was executed whose answer never came.
//!
//! A call that stores something writes its number at a place of its own in a string of this node's, in the same
//! script. A place is one call's at a time, so the number that stands there afterwards tells whether that call
//! was executed, in whatever order the others were. Places that are free are taken again, so the string is as
//! long as there were ever calls under way: four bytes each.
//!
//! On a Cluster there is such a string in every slot that was asked about.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::key::{Keys, slot};

/// Calls of a slot that may have a receipt at a time; more go without.
const MOST: usize = 4096;
/// Bytes of a number, and of which charges were stored.
const ENTRY: usize = 4;
/// How often their life is prolonged: they live for two hours after their node was last there.
const PROLONGED: Duration = Duration::from_secs(600);
/// The flag that asks a script for that.
const PROLONGS: u8 = 8;
const SLOTS: usize = 16_384;
/// How long calls go without, once their slot was found to be between two nodes.
const MOVING: Duration = Duration::from_secs(1);

/// This node's receipts.
#[derive(Debug)]
pub(crate) struct Receipts {
    slots: Box<[Mutex<Places>]>,
}

/// Those of a slot.
#[derive(Debug)]
struct Places {
    key: Arc<str>,
    /// The number that was last used at each place, never 0.
    numbers: Vec<u16>,
    free: VecDeque<u16>,
    prolonged: Option<Instant>,
    moving: Option<Instant>,
}

/// A place, for as long as it is not known what became of the call.
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
    pub(crate) fn new(keys: &Keys, cluster: bool) -> Self {
        let node = format!("{:016x}", RandomState::new().hash_one(()));
        let tags = if cluster { tags() } else { vec![0] };
        let places = |tag: &u32| {
            Mutex::new(Places {
                key: keys.receipts(&tag.to_string(), &node).into(),
                numbers: Vec::new(),
                free: VecDeque::new(),
                prolonged: None,
                moving: None,
            })
        };
        Self { slots: tags.iter().map(places).collect() }
    }

    /// A place for a call; none where too many are under way, or the slot moves.
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

    /// A slot is between two nodes, which take calls of a single key only.
    pub(crate) fn moves(&self, slot: u16) {
        self.lock(slot).moving = Some(Instant::now());
    }

    fn lock(&self, slot: u16) -> MutexGuard<'_, Places> {
        let place = usize::from(slot) % self.slots.len();
        self.slots[place].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn new_place(&mut self) -> Option<u16> {
        let place = self.numbers.len();
        (place < MOST).then(|| self.numbers.push(0))?;
        u16::try_from(place).ok()
    }
}

impl Receipt {
    /// What a script reads of it: its entry, its place, the key.
    pub(crate) fn argument(receipt: Option<&Self>) -> Vec<u8> {
        let Some(receipt) = receipt else { return [0; ENTRY + 2].to_vec() };
        let place = (usize::from(receipt.place) * ENTRY).to_string();
        let [low, high] = receipt.number.to_le_bytes();
        // Of a request under one rule, the first charge.
        let mut argument = vec![low, high, 1, 0];
        for text in [place.as_bytes(), receipt.key.as_bytes()] {
            argument.push(text.len() as u8);
            argument.extend(text);
        }
        argument
    }

    /// What a script's flags have of it.
    pub(crate) fn flags(receipt: Option<&Self>) -> u8 {
        receipt.filter(|receipt| receipt.prolongs).map_or(0, |_| PROLONGS)
    }

    /// Its call was answered: what it has stored has prolonged the receipts' life, if it was to.
    pub(crate) fn answered(&self, stored: bool) {
        if stored && self.prolongs {
            self.receipts.lock(self.slot).prolonged = Some(Instant::now());
        }
    }

    /// Which of its charges the call stored, one bit each, by what its node's receipts are now.
    pub(crate) fn stored(&self, receipts: &[u8]) -> u16 {
        let from = usize::from(self.place) * ENTRY;
        match receipts.get(from..from + ENTRY) {
            Some(&[a, b, c, d]) if u16::from_le_bytes([a, b]) == self.number => {
                u16::from_le_bytes([c, d])
            }
            _ => 0,
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.receipts.lock(self.slot).free.push_back(self.place);
    }
}

/// The least number for each slot that is in it when it is a key's tag.
fn tags() -> Vec<u32> {
    let (mut tags, mut left) = (vec![None; SLOTS], SLOTS);
    for number in 0u32.. {
        let tag = &mut tags[usize::from(slot(number.to_string().as_bytes()))];
        if tag.is_none() {
            (*tag, left) = (Some(number), left - 1);
        }
        if left == 0 {
            break;
        }
    }
    tags.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ClientKeys;

    fn receipts(cluster: bool) -> Arc<Receipts> {
        Arc::new(Receipts::new(&Keys::new("earrrl", ClientKeys::Escaped), cluster))
    }

    /// Writes an entry as a script does.
    fn executed(receipt: &Receipt, string: &mut Vec<u8>) {
        let argument = Receipt::argument(Some(receipt));
        let (place, key) = argument[5..].split_at(argument[4].into());
        assert_eq!((usize::from(key[0]), &key[1..]), (key.len() - 1, receipt.key.as_bytes()));
        let place = std::str::from_utf8(place).unwrap().parse::<usize>().unwrap();
        string.resize(string.len().max(place + ENTRY), 0);
        string[place..place + ENTRY].copy_from_slice(&argument[..4]);
    }

    #[test]
    fn a_number_at_a_place_tells_of_one_call() {
        let (receipts, mut string) = (receipts(false), Vec::new());
        let [one, two, three] = [(); 3].map(|()| receipts.take(7).unwrap());
        executed(&three, &mut string);
        executed(&one, &mut string);
        assert_eq!([&one, &two, &three].map(|receipt| receipt.stored(&string)), [1, 0, 1]);
        drop(one);
        let again = receipts.take(7).unwrap();
        assert_eq!((again.place, again.stored(&string)), (0, 0), "the place of an earlier call");
        executed(&again, &mut string);
        assert_eq!((again.stored(&string), again.stored(&[])), (1, 0));
    }

    #[test]
    fn places_are_bounded_and_return() {
        let receipts = receipts(false);
        let mut taken: Vec<_> = (0..MOST).map(|_| receipts.take(0).unwrap()).collect();
        assert!(receipts.take(0).is_none());
        taken.pop();
        assert!(receipts.take(0).is_some());
    }

    #[test]
    fn a_cluster_has_receipts_in_every_slot() {
        let receipts = receipts(true);
        for wanted in [0, 1, 5000, 16_383] {
            let receipt = receipts.take(wanted).unwrap();
            assert_eq!(slot(receipt.key.as_bytes()), wanted, "{}", receipt.key);
        }
    }
}
