//! The names under which clients appear in the output.

use std::borrow::Cow;
use std::hash::{BuildHasher as _, RandomState};

use super::ClientNumbers;
use crate::line::Escaped;

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
    mask: Option<RandomState>,
}

impl ClientNames {
    /// Creates the names of a run: pseudonyms if `anonymize` is true, otherwise keys.
    pub fn new(anonymize: bool) -> Self {
        Self {
            mask: anonymize.then(RandomState::new),
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
        self.pseudonym(clients, client).unwrap_or_else(|| {
            let mut name = Escaped(clients.key(client)).to_string();
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
        if let Some(name) = self.pseudonym(clients, client) {
            return Cow::Owned(name);
        }
        let key = clients.key(client);
        match std::str::from_utf8(key) {
            Ok(key) => Cow::Borrowed(key),
            Err(_) => Cow::Owned(Escaped(key).to_string()),
        }
    }

    /// Returns `text`, which identifies a client, or its pseudonym, for machine-readable output.
    pub fn of(&self, text: &str) -> String {
        match &self.mask {
            Some(mask) => format!("client-{:016x}", mask.hash_one(text.as_bytes())),
            None => text.to_owned(),
        }
    }

    fn pseudonym(&self, clients: &ClientNumbers, client: u32) -> Option<String> {
        let hash = self.mask.as_ref()?.hash_one(clients.key(client));
        Some(format!("client-{hash:016x}"))
    }
}
