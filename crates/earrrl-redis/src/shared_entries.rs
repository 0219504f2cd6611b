//! Entries that all processes on one Redis share beside the clients' records, such as the overrides that a server was
//! told at run time. They are fields of one hash, whose empty field is their version.

use std::time::Duration;

use earrrl::EngineError;
use redis::{Cmd, Value, cmd};

use crate::connection::fault::Fault;
use crate::engine::RedisEngine;

/// The time for which a call waits for Redis. No decision waits for these calls, and reading all entries may take
/// longer than a decision.
const PATIENCE: Duration = Duration::from_secs(2);

/// Changes an entry, and counts the version up if it has changed.
const CHANGE: &str = r"
local key, name, verb, text = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if verb == 'set' then
    redis.call('HSET', key, name, text)
elseif verb == 'remove-if' and redis.call('HGET', key, name) ~= text then
    return 0
elseif redis.call('HDEL', key, name) == 0 then
    return 0
end
return redis.call('HINCRBY', key, '', 1)
";

/// A change of a shared entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedEntry {
    /// Sets the entry to this text.
    Set(Vec<u8>),
    /// Removes the entry.
    Remove,
    /// Removes the entry if it has this text.
    RemoveIf(Vec<u8>),
}

/// The texts of all shared entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedEntries {
    /// The number of changes so far.
    pub version: u64,
    /// The texts, in no order.
    pub texts: Vec<Vec<u8>>,
}

impl RedisEngine {
    /// Changes the shared entry of this name.
    ///
    /// # Errors
    /// Returns an error if Redis does not answer, in which case the entry may be changed or not; or if names of
    /// clients must not be stored in Redis.
    pub async fn share(&self, name: &[u8], entry: &SharedEntry) -> Result<(), EngineError> {
        let (verb, text) = match entry {
            SharedEntry::Set(text) => ("set", &text[..]),
            SharedEntry::Remove => ("remove", &[][..]),
            SharedEntry::RemoveIf(text) => ("remove-if", &text[..]),
        };
        let mut change = cmd("EVAL");
        change.arg(CHANGE).arg(1).arg(self.entries_key()?);
        change.arg(name).arg(verb).arg(text);
        Ok(self.shared_call(&change).await.map(drop)?)
    }

    /// Returns the shared entries, unless their version is `known`. There are none if names of clients must not be
    /// stored in Redis.
    ///
    /// # Errors
    /// Returns an error if Redis does not answer.
    pub async fn shared_entries(
        &self,
        known: Option<u64>,
    ) -> Result<Option<SharedEntries>, EngineError> {
        let Ok(key) = self.entries_key() else {
            return Ok(None);
        };
        let mut version = cmd("HGET");
        version.arg(&key).arg("");
        let answer = self.shared_call(&version).await?;
        if Some(number(&answer)) == known {
            return Ok(None);
        }
        let mut all = cmd("HGETALL");
        all.arg(key);
        let mut entries = SharedEntries::default();
        let answer = self.shared_call(&all).await?;
        let fields = answer.into_map_iter().map_err(|_| Fault::nonsense())?;
        for (name, text) in fields {
            match (name, text) {
                (Value::BulkString(name), text) if name.is_empty() => {
                    entries.version = number(&text);
                }
                (_, Value::BulkString(text)) => entries.texts.push(text),
                _ => {}
            }
        }
        Ok(Some(entries))
    }

    fn entries_key(&self) -> Result<Vec<u8>, EngineError> {
        let key = self.shared().connection.keys.shared_entries();
        let why = "hmac_key keeps names of clients out of Redis, and overrides have them";
        key.ok_or_else(|| EngineError::Unavailable(why.to_owned()))
    }

    async fn shared_call(&self, command: &Cmd) -> Result<Value, Fault> {
        let link = self.shared().connection.any_link();
        let mut link = link.ok_or(Fault::Skipped)?;
        let answer = tokio::time::timeout(PATIENCE, link.send(command)).await;
        answer.map_err(|_| Fault::Late)?.map_err(Fault::from)
    }
}

/// Returns the version in the answer of Redis, which is 0 before the first change.
fn number(answer: &Value) -> u64 {
    let text = match answer {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        _ => None,
    };
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}
