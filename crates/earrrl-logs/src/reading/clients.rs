//! Every key seen, each under a small number.
//!
//! A table of small slots leads to the entries, which stand in the order of their first request. Both
//! are far away where there are many clients: many keys are looked for together, first all in the
//! slots and then all among the entries, and nothing in either round waits for anything before it.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

/// Bytes of all keys together.
const MOST: usize = 1 << 32;

/// Bytes of a key that stand in its entry: an IPv6 network has 23 at most.
const SHORT: usize = 31;

/// The length of a longer key, in its label.
const LONG: u8 = u8::MAX;

/// Slots at the start, a power of two.
const SLOTS: usize = 1 << 10;

/// The number in an unused slot.
const NOBODY: u32 = u32::MAX;

/// Keys in the order of their first request.
///
/// The hash is keyed at random on each run. That is weaker than a pseudo-random function, but
/// whoever wrote the log can't see how long one run of this tool took, so can't choose against it.
pub struct ClientNumbers {
    /// Open addresses, each client at the first free one from its hash on; less than three quarters
    /// are taken.
    slots: Vec<ClientSlot>,
    /// By number.
    entries: Vec<ClientText>,
    hasher: RandomState,
    /// Keys longer than an entry, one behind the other.
    long: Vec<u8>,
}

/// A client's number, and enough of its hash to tell it from nearly all others.
#[derive(Debug, Clone, Copy)]
struct ClientSlot {
    hash: u32,
    number: u32,
}

/// A client's key for lookups: its hash, and its text if that is short.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    hash: u32,
    text: ClientText,
}

/// A short key's length and bytes, or a long key's end in `long` and its length. It fills half a
/// cache line and never spans two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(32))]
struct ClientText([u8; SHORT + 1]);

impl Label {
    /// The label of a key.
    #[inline]
    pub fn new(key: &[u8], hasher: &RandomState) -> Self {
        let mut text = [0; SHORT + 1];
        if key.len() <= SHORT {
            text[0] = key.len() as u8;
            text[1..=key.len()].copy_from_slice(key);
        } else {
            text[0] = LONG;
        }
        Self { hash: hasher.hash_one(key) as u32, text: ClientText(text) }
    }
}

impl Default for ClientNumbers {
    fn default() -> Self {
        let free = ClientSlot { hash: 0, number: NOBODY };
        Self {
            slots: vec![free; SLOTS],
            entries: Vec::new(),
            hasher: RandomState::default(),
            long: Vec::new(),
        }
    }
}

impl ClientNumbers {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the hasher for labels.
    pub fn hasher(&self) -> RandomState {
        self.hasher.clone()
    }

    /// Returns the number of `key`, a new one if it has not been seen; `None` if there is no room.
    pub fn number(&mut self, key: &[u8]) -> Option<u32> {
        self.labelled(&Label::new(key, &self.hasher), key)
    }

    /// Returns the number of a key with its label, a new one if it has not been seen. Returns `None`
    /// if there is no room.
    pub fn labelled(&mut self, label: &Label, key: &[u8]) -> Option<u32> {
        match self.find(label, key) {
            Ok(number) => Some(number),
            Err(place) => self.insert(label, key, place),
        }
    }

    /// The slot that a label's hash leads to.
    #[inline]
    fn home(&self, label: &Label) -> usize {
        label.hash as usize & (self.slots.len() - 1)
    }

    /// Guesses the clients with these labels by their hashes alone, which is nearly always right.
    pub fn guess<'a>(&self, labels: impl Iterator<Item = &'a Label>, guesses: &mut [u32]) {
        for (guess, label) in guesses.iter_mut().zip(labels) {
            let mut place = self.home(label);
            while self.slots[place].hash != label.hash && self.slots[place].number != NOBODY {
                place = (place + 1) & (self.slots.len() - 1);
            }
            *guess = self.slots[place].number;
        }
    }

    /// Returns true if `guess` is the client with this label. Always false for long keys.
    #[inline]
    pub fn is(&self, guess: u32, label: &Label) -> bool {
        label.text.0[0] != LONG && self.entries.get(guess as usize) == Some(&label.text)
    }

    /// The number of a key that has been seen, or the slot where it would be.
    fn find(&self, label: &Label, key: &[u8]) -> Result<u32, usize> {
        let mut place = self.home(label);
        loop {
            let slot = self.slots[place];
            if slot.number == NOBODY {
                return Err(place);
            }
            if slot.hash == label.hash && self.key(slot.number) == key {
                return Ok(slot.number);
            }
            place = (place + 1) & (self.slots.len() - 1);
        }
    }

    #[cold]
    fn insert(&mut self, label: &Label, key: &[u8], place: usize) -> Option<u32> {
        let number = u32::try_from(self.entries.len()).ok().filter(|&number| number != NOBODY)?;
        let ClientText(mut text) = label.text;
        if text[0] == LONG {
            if key.len() > MOST - self.long.len() {
                return None;
            }
            self.long.extend_from_slice(key);
            text[1..9].copy_from_slice(&self.long.len().to_le_bytes());
            text[9..17].copy_from_slice(&key.len().to_le_bytes());
        }
        self.entries.push(ClientText(text));
        self.slots[place] = ClientSlot { hash: label.hash, number };
        if self.entries.len() * 4 > self.slots.len() * 3 {
            self.grow();
        }
        Some(number)
    }

    /// Doubles the number of slots. The hashes in the slots suffice, so no key is read.
    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        let mut slots = vec![ClientSlot { hash: 0, number: NOBODY }; mask + 1];
        for slot in self.slots.iter().filter(|slot| slot.number != NOBODY) {
            let mut place = slot.hash as usize & mask;
            while slots[place].number != NOBODY {
                place = (place + 1) & mask;
            }
            slots[place] = *slot;
        }
        self.slots = slots;
    }

    /// The key with this number.
    pub fn key(&self, number: u32) -> &[u8] {
        let ClientText(text) = &self.entries[number as usize];
        if text[0] != LONG {
            return &text[1..=usize::from(text[0])];
        }
        let number = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|place| text[at + place]);
            usize::from_le_bytes(bytes)
        };
        let (end, len) = (number(1), number(9));
        &self.long[end - len..end]
    }

    /// Returns true if there are no clients.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of clients.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_number() {
        let mut clients = ClientNumbers::new();
        let key = |n: u64| format!("{:x}", n * 7919) + &"-".repeat(n as usize % 40);
        let keys: Vec<String> = (0..10_000).map(key).collect();
        for _ in 0..2 {
            for (number, key) in (0..).zip(&keys) {
                assert_eq!(clients.number(key.as_bytes()), Some(number));
            }
        }
        assert_eq!(clients.number(b""), Some(10_000));
        assert_eq!(clients.len(), 10_001);
        for (number, key) in (0..).zip(&keys) {
            assert_eq!(clients.key(number), key.as_bytes());
            let label = Label::new(key.as_bytes(), &clients.hasher);
            assert!(!clients.is(NOBODY, &label) && !clients.is(number + 1, &label));
            assert_eq!(clients.is(number, &label), key.len() <= SHORT);
        }
        assert_eq!(clients.key(10_000), b"");
        assert_eq!(clients.key(0), b"0");
    }
}
