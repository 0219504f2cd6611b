//! Entries that all processes on one Redis share beside the clients' records, such as the overrides that a server was
//! told at run time. They are fields of one hash, whose empty field is their version.

use std::collections::HashMap;
use std::time::Duration;

use earrrl::EngineError;
use redis::{Cmd, FromRedisValue, Value, cmd, from_redis_value};

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
        Ok(self.shared_call::<Value>(&change).await.map(drop)?)
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
        let mut present = cmd("HGET");
        present.arg(&key).arg("");
        if Some(version(self.shared_call(&present).await?)) == known {
            return Ok(None);
        }
        let mut all = cmd("HGETALL");
        all.arg(key);
        let mut texts: HashMap<Vec<u8>, Vec<u8>> = self.shared_call(&all).await?;
        Ok(Some(SharedEntries {
            version: version(texts.remove(&[][..])),
            texts: texts.into_values().collect(),
        }))
    }

    fn entries_key(&self) -> Result<Vec<u8>, EngineError> {
        let key = self.shared().connection.keys.shared_entries();
        let why = "hmac_key keeps names of clients out of Redis, and overrides have them";
        key.ok_or_else(|| EngineError::Unavailable(why.to_owned()))
    }

    async fn shared_call<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Fault> {
        let mut link = self.shared().connection.any_link()?;
        let answer = tokio::time::timeout(PATIENCE, link.send(command)).await;
        from_redis_value(answer.map_err(|_| Fault::Late)??).map_err(|_| Fault::nonsense())
    }
}

/// Returns the version in the empty field, which is 0 before the first change.
fn version(text: Option<Vec<u8>>) -> u64 {
    let text = text.and_then(|text| String::from_utf8(text).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}
