//! The `[engine]` table, which selects where the state of clients is stored: in memory or in Redis.

use std::path::PathBuf;

use super::redis::{self, RedisConfig};
use super::table::Table;

/// The engine that stores the state of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineConfig {
    /// The memory of this process stores the state.
    #[default]
    Memory,
    /// Files store the state. It survives the process, and several servers of a host share it.
    State(StateConfig),
    /// Redis or Valkey stores the state, which several servers share.
    Redis(Box<RedisConfig>),
}

impl EngineConfig {
    /// Returns true if limits can share a store; see
    /// [`PlannedLimit::store`](crate::engine::PlannedLimit::store).
    pub fn shares_stores(&self) -> bool {
        matches!(self, Self::Memory)
    }
}

/// The directory of state files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateConfig {
    /// The directory.
    pub directory: PathBuf,
    /// True if rules are accepted whose states are too large for a file, and start empty.
    pub accepts_other_rules: bool,
}

impl EngineConfig {
    /// Reads the table; `capacity` is its field of this name.
    pub(super) fn read(table: &Table<'_>, capacity: Option<usize>) -> Self {
        let redis = redis::read(table, capacity);
        let state = StateConfig::read(table);
        match redis {
            Some(redis) => Self::Redis(Box::new(redis)),
            None => state.map_or(Self::Memory, Self::State),
        }
    }

    /// Returns the number of clients for which a rule reserves memory by default.
    pub fn default_capacity(&self) -> usize {
        match self {
            Self::Memory | Self::State(_) => super::bounds::DEFAULT_CAPACITY,
            // The tables in memory decide only while Redis is unavailable.
            Self::Redis(config) => config.options.local_capacity,
        }
    }
}

impl StateConfig {
    /// Returns the configured directory of state files; `None` if there is none.
    fn read(table: &Table<'_>) -> Option<Self> {
        let field = table.field("state");
        let condition = "state = \"/a/directory\"";
        table.only_if(field.is_some(), condition, &["not_persisted"]);
        let accepts = table.choice("not_persisted", &[("refuse", false), ("ok", true)]);
        let field = field?;
        if table.has("redis") || table.has("redis_file") {
            field.mistake("redis is set already; want one of them");
        }
        let directory = |text: &str| Some(text.into()).filter(|_| !text.is_empty());
        Some(Self {
            directory: field.parsed("the path of a directory", directory)?,
            accepts_other_rules: accepts.unwrap_or(false),
        })
    }
}
