//! A table that gives each client's key a small number, and the names under which clients appear in the output.
//!
//! An open-addressed table of small slots leads to entries, which are stored in the order of each
//! client's first request. With many clients, a lookup misses the cache once in the slots and once
//! in the entries. So keys are looked up in batches: first all in the slots, then all in the
//! entries, and the misses of each step overlap.

use std::borrow::Cow;
use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;

use crate::line::Escaped;

/// The most bytes that all long keys may take together.
const MOST: usize = 1 << 32;

/// The most bytes of a key that is stored in its entry; the key of an IPv6 network has at most 23.
const SHORT: usize = 31;

/// The value of the length byte of a key that is too long for its entry.
const LONG: u8 = u8::MAX;

/// The number of slots of an empty table, a power of two.
const SLOTS: usize = 1 << 10;

/// The client number that marks a slot as unused.
const NOBODY: u32 = u32::MAX;

/// The keys of all clients, numbered in the order of their first requests.
///
/// The hash function has a random key on each run. It is weaker than a pseudo-random function, but
/// the author of a log cannot measure how long a run takes, and so cannot construct keys that
/// collide.
///
/// ```
/// use earrrl_logs::reading::ClientNumbers;
///
/// let mut clients = ClientNumbers::new();
/// let alice = clients.number(b"alice").ok_or("too many clients")?;
/// assert_eq!((alice, clients.number(b"bob"), clients.number(b"alice")), (0, Some(1), Some(0)));
/// assert_eq!(clients.key(alice), b"alice");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ClientNumbers {
    /// The slots of an open-addressed hash table: each client is in the first slot that was free
    /// from its hash on. Less than three quarters of the slots are used.
    slots: Vec<ClientSlot>,
    /// The text of each client's key, indexed by client number.
    entries: Vec<ClientText>,
    hasher: RandomState,
    /// The bytes of the keys that are too long for an entry, one after the other.
    long: Vec<u8>,
}

/// A client's number and 32 bits of its key's hash, which rarely match those of another key.
#[derive(Debug, Clone, Copy)]
struct ClientSlot {
    hash: u32,
    number: u32,
}

/// An unused slot.
const FREE: ClientSlot = ClientSlot {
    hash: 0,
    number: NOBODY,
};

/// The values by which a key is looked up: its hash, and its text if that is short.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    hash: u32,
    text: ClientText,
}

/// The length and bytes of a short key; or, for a long key, its end in `long` and its length. It
/// fills half a cache line and never spans two lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(32))]
struct ClientText([u8; SHORT + 1]);

impl Label {
    /// Computes the label of a key with the table's hasher.
    #[inline]
    pub(crate) fn new(key: &[u8], hasher: &RandomState) -> Self {
        let mut text = [0; SHORT + 1];
        if key.len() <= SHORT {
            text[0] = key.len() as u8;
            text[1..=key.len()].copy_from_slice(key);
        } else {
            text[0] = LONG;
        }
        Self {
            hash: hasher.hash_one(key) as u32,
            text: ClientText(text),
        }
    }
}

impl Default for ClientNumbers {
    fn default() -> Self {
        Self {
            slots: vec![FREE; SLOTS],
            entries: Vec::new(),
            hasher: RandomState::default(),
            long: Vec::new(),
        }
    }
}

impl ClientNumbers {
    /// Creates an empty table.
    ///
    /// ```
    /// assert!(earrrl_logs::reading::ClientNumbers::new().is_empty());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the hasher with which labels for this table are computed.
    pub(crate) fn hasher(&self) -> RandomState {
        self.hasher.clone()
    }

    /// Returns the number of `key`, which is added if it is new. Returns `None` if the table is
    /// full.
    ///
    /// ```
    /// # use earrrl_logs::reading::ClientNumbers;
    /// let mut clients = ClientNumbers::new();
    /// assert_eq!(clients.number(b"alice"), clients.number(b"alice"));
    /// ```
    pub fn number(&mut self, key: &[u8]) -> Option<u32> {
        self.labelled(&Label::new(key, &self.hasher), key)
    }

    /// Returns the number of `key`, whose label is given; the key is added if it is new. Returns
    /// `None` if the table is full.
    pub(crate) fn labelled(&mut self, label: &Label, key: &[u8]) -> Option<u32> {
        match self.find(label, key) {
            Ok(number) => Some(number),
            Err(place) => self.insert(label, key, place),
        }
    }

    /// Returns the number of `key` if it is known.
    pub(crate) fn known(&self, key: &[u8]) -> Option<u32> {
        self.find(&Label::new(key, &self.hasher), key).ok()
    }

    /// Returns the slot at which the search for a label begins.
    #[inline]
    fn home(&self, label: &Label) -> usize {
        label.hash as usize & (self.slots.len() - 1)
    }

    /// Writes to `guesses` the number of the client that each label probably belongs to. Only
    /// hashes are compared, so a guess may be wrong, which is rare.
    pub(crate) fn guess<'a>(&self, labels: impl Iterator<Item = &'a Label>, guesses: &mut [u32]) {
        for (guess, label) in guesses.iter_mut().zip(labels) {
            let mut place = self.home(label);
            while self.slots[place].hash != label.hash && self.slots[place].number != NOBODY {
                place = (place + 1) & (self.slots.len() - 1);
            }
            *guess = self.slots[place].number;
        }
    }

    /// Returns true if the client numbered `guess` has this label. Returns false for every long
    /// key, whose text is not in the label.
    #[inline]
    pub(crate) fn is(&self, guess: u32, label: &Label) -> bool {
        label.text.0[0] != LONG && self.entries.get(guess as usize) == Some(&label.text)
    }

    /// Returns the number of a known key, or else the slot where it has to be added.
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
        let number = u32::try_from(self.entries.len())
            .ok()
            .filter(|&number| number != NOBODY)?;
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
        self.slots[place] = ClientSlot {
            hash: label.hash,
            number,
        };
        if self.entries.len() * 4 > self.slots.len() * 3 {
            self.grow();
        }
        Some(number)
    }

    /// Doubles the number of slots. It needs only the hashes in the slots, so it reads no keys.
    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        let mut slots = vec![FREE; mask + 1];
        for slot in self.slots.iter().filter(|slot| slot.number != NOBODY) {
            let mut place = slot.hash as usize & mask;
            while slots[place].number != NOBODY {
                place = (place + 1) & mask;
            }
            slots[place] = *slot;
        }
        self.slots = slots;
    }

    /// Returns the key of the client with this number.
    ///
    /// ```
    /// # use earrrl_logs::reading::ClientNumbers;
    /// let mut clients = ClientNumbers::new();
    /// clients.number(b"alice");
    /// assert_eq!(clients.key(0), b"alice");
    /// ```
    pub fn key(&self, number: u32) -> &[u8] {
        let ClientText(text) = &self.entries[number as usize];
        if text[0] != LONG {
            return &text[1..=usize::from(text[0])];
        }
        let number = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|place| text[at + place]);
            usize::from_le_bytes(bytes)
        };
        let end = number(1);
        let len = number(9);
        &self.long[end - len..end]
    }

    /// Returns true if the table has no clients.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of clients in the table.
    ///
    /// ```
    /// # use earrrl_logs::reading::ClientNumbers;
    /// let mut clients = ClientNumbers::new();
    /// clients.number(b"alice");
    /// assert_eq!(clients.len(), 1);
    /// ```
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

// The names under which clients appear in the output.

/// The most characters of a name that are printed, since a name may be a user agent of thousands.
const SHOWN: usize = 200;

/// Names clients by their keys, or by pseudonyms if the output is to be anonymous.
///
/// ```
/// use earrrl_logs::reading::{ClientNames, ClientNumbers};
///
/// let mut clients = ClientNumbers::new();
/// clients.number(b"192.0.2.7");
/// assert_eq!(ClientNames::new(false).printable(&clients, 0), "192.0.2.7");
/// assert_ne!(ClientNames::new(true).printable(&clients, 0), "192.0.2.7"); // a pseudonym
/// ```
pub struct ClientNames {
    /// The hash function of pseudonyms: SipHash with a random key that exists only during this run,
    /// so that nobody can find a pseudonym's address by trying all addresses.
    mask: Option<std::hash::RandomState>,
}

impl ClientNames {
    /// Creates the names of a run: pseudonyms if `anonymize` is true, otherwise keys.
    pub fn new(anonymize: bool) -> Self {
        Self {
            mask: anonymize.then(std::hash::RandomState::new),
        }
    }

    /// Returns true if names are pseudonyms.
    pub(crate) fn are_hidden(&self) -> bool {
        self.mask.is_some()
    }

    /// Returns a client's name with control characters escaped, shortened if it is long.
    ///
    /// ```
    /// # use earrrl_logs::reading::{ClientNames, ClientNumbers};
    /// let mut clients = ClientNumbers::new();
    /// clients.number(b"a\x1bb");
    /// assert_eq!(ClientNames::new(false).printable(&clients, 0), r"a\x1bb");
    /// ```
    pub fn printable(&self, clients: &ClientNumbers, client: u32) -> String {
        let key = clients.key(client);
        self.pseudonym(key).unwrap_or_else(|| {
            let mut name = Escaped(key).to_string();
            if let Some((end, _)) = name.char_indices().nth(SHOWN) {
                name.truncate(end);
                name.push('…');
            }
            name
        })
    }

    /// Returns a client's name for machine-readable output: its key, escaped only if it is not
    /// UTF-8.
    ///
    /// ```
    /// # use earrrl_logs::reading::{ClientNames, ClientNumbers};
    /// let mut clients = ClientNumbers::new();
    /// clients.number(b"192.0.2.7");
    /// assert_eq!(ClientNames::new(false).exact(&clients, 0), "192.0.2.7");
    /// ```
    pub fn exact<'a>(&self, clients: &'a ClientNumbers, client: u32) -> Cow<'a, str> {
        let key = clients.key(client);
        if let Some(name) = self.pseudonym(key) {
            return Cow::Owned(name);
        }
        match std::str::from_utf8(key) {
            Ok(key) => Cow::Borrowed(key),
            Err(_) => Cow::Owned(Escaped(key).to_string()),
        }
    }

    /// Returns `text`, which identifies a client, or its pseudonym, for machine-readable output.
    pub fn of(&self, text: &str) -> String {
        let pseudonym = self.pseudonym(text.as_bytes());
        pseudonym.unwrap_or_else(|| text.to_owned())
    }

    fn pseudonym(&self, key: &[u8]) -> Option<String> {
        let hash = self.mask.as_ref()?.hash_one(key);
        Some(format!("client-{hash:016x}"))
    }
}

#[cfg(test)]
mod clients_tests {
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
