//! The names of clients that are limited or close to it, by rule.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use earrrl::internal::{Names, lock, table::KeyHash};
use earrrl::{Decision, Limit, Rule};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::config::server::NamesConfig;

/// The name under which the clients of all limits in Envoy's format are listed. No rule can have it.
pub const ENVOY: &str = "ENVOY";
/// The bytes of an HMAC that replace a name, as hexadecimal digits.
const DIGEST: usize = 16;

/// The directories of names of all rules, which stay across reloads.
#[derive(Debug, Default)]
pub struct Directories {
    config: NamesConfig,
    by_rule: Mutex<BTreeMap<String, Arc<Names>>>,
}

/// The directory of one rule's names; it may be switched off.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    names: Option<Arc<Names>>,
    config: NamesConfig,
}

/// A client, and what was done to it.
#[derive(Clone, Debug)]
pub struct ClientNotice {
    /// The client.
    pub client: NamedClient,
    /// The action.
    pub what: Notice,
}

/// An action on a single client.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The client's state was deleted.
    Reset,
    /// An override was set at run time, or ended.
    Override {
        /// The client's limit; `None` if the override has ended.
        limit: Option<String>,
        /// The end of the override, in seconds since the Unix epoch.
        expires: Option<u64>,
        /// The name of the token that set it.
        by: Option<String>,
    },
}

/// A client under one rule.
#[derive(Clone, Debug)]
pub struct NamedClient {
    /// The name of the rule.
    pub rule: String,
    /// The part of the client's hash that the table stores.
    pub fingerprint: u64,
    /// The client's name, as the directory of names would have it.
    pub name: Vec<u8>,
    /// True if the name was cut off.
    pub is_cut: bool,
}

impl Directories {
    /// Returns directories with these settings.
    pub fn new(config: &NamesConfig) -> Self {
        Self {
            config: config.clone(),
            by_rule: Mutex::default(),
        }
    }

    /// Returns the directory of the rule of this name.
    pub fn of_rule(&self, name: &str, limit: &Limit) -> Directory {
        if self.config.options.capacity == 0 {
            return Directory::default();
        }
        let mut by_rule = lock(&self.by_rule);
        let new = || Arc::new(Names::new(limit, self.config.options));
        let names = Arc::clone(by_rule.entry(name.to_owned()).or_insert_with(new));
        names.set_limit(limit);
        Directory {
            names: Some(names),
            config: self.config.clone(),
        }
    }

    /// Returns a directory for the clients of all limits in Envoy's format, most of which have windows of a minute.
    pub fn of_descriptors(&self) -> Directory {
        let usual = "fixed-window 1/1m".parse::<Rule>().ok();
        let usual = usual.filter(|_| self.config.options.capacity > 0);
        let names = usual.map(|rule| Arc::new(Names::new(rule.limit(), self.config.options)));
        Directory {
            names,
            config: self.config.clone(),
        }
    }

    /// Drops the directories of rules that were removed.
    pub fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        let mut by_rule = lock(&self.by_rule);
        by_rule.retain(|name, _| is_kept(name));
    }
}

impl Directory {
    /// Returns the names, unless they are switched off.
    pub fn names(&self) -> Option<&Names> {
        self.names.as_deref()
    }

    /// Returns the number of remaining requests below which a client of this limit is named; 0 if
    /// none is.
    pub fn remaining_below(&self, limit: &Limit) -> u64 {
        self.names
            .as_ref()
            .map_or(0, |_| self.config.options.remaining_below(limit))
    }

    /// Notes a decision under this rule on a client's request.
    pub fn note(&self, client: KeyHash, limit: &Limit, decision: &Decision, key: &[u8]) {
        if let Some(names) = &self.names {
            names.note(client, limit, decision, || self.name_of(key));
        }
    }

    /// Drops the name of a client that was reset.
    pub fn forget(&self, client: KeyHash) {
        if let Some(names) = &self.names {
            names.forget(client);
        }
    }

    /// Describes a client of the rule of this name.
    pub fn named(&self, rule: &str, client: KeyHash, key: &[u8]) -> NamedClient {
        let mut name = self.name_of(key);
        let is_cut = name.len() > self.config.options.max_bytes;
        name.truncate(self.config.options.max_bytes);
        NamedClient {
            rule: rule.to_owned(),
            fingerprint: client.fingerprint(),
            name,
            is_cut,
        }
    }

    /// Returns the name of a client: its key, or the key's HMAC.
    fn name_of(&self, key: &[u8]) -> Vec<u8> {
        let Some(secret) = &self.config.hmac_key else {
            return key.to_vec();
        };
        // An HMAC accepts keys of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.0.as_bytes()) else {
            return Vec::new();
        };
        mac.update(key);
        let digest = mac.finalize().into_bytes();
        digest[..DIGEST]
            .iter()
            .flat_map(|byte| format!("{byte:02x}").into_bytes())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_removed_rules_are_dropped() {
        let directories = Directories::new(&NamesConfig::default());
        let rule: earrrl::Rule = "gcra 1/s burst=1".parse().unwrap();
        let weak = ["kept", "removed"].map(|name| {
            let directory = directories.of_rule(name, rule.limit());
            Arc::downgrade(&directory.names.unwrap())
        });
        directories.retain(|name| name == "kept");
        assert_eq!(weak.map(|names| names.upgrade().is_some()), [true, false]);
    }
}
