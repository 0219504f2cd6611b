//! The names of clients in the output.

use std::borrow::Cow;
use std::hash::{BuildHasher as _, RandomState};

use super::ClientNumbers;
use crate::line::Escaped;

/// Characters printed of a name: a user agent may have thousands.
const SHOWN: usize = 200;

/// Keys as they are, or pseudonyms.
pub struct Names {
    /// SipHash under a key that is drawn anew for each run and kept nowhere, so nobody can try
    /// addresses until the pseudonym comes out.
    mask: Option<RandomState>,
}

impl Names {
    /// Keys, or pseudonyms where `anonymize` is set.
    pub fn new(anonymize: bool) -> Self {
        Self { mask: anonymize.then(RandomState::new) }
    }

    /// Returns true if names are pseudonyms.
    pub fn are_hidden(&self) -> bool {
        self.mask.is_some()
    }

    /// A client's name, fit to print: its start where it is long.
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

    /// A client's name for data: the key unchanged where it is text.
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

    /// A text that names a client, for data.
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
