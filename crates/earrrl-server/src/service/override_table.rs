//! The overrides that were set at run time, by rule and client, and the changes of them; their part in the
//! active rules; and the place where they are kept beyond the life of the process, and shared with other servers: a
//! file in the state directory, or Redis.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::ops::Bound;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use earrrl::EngineError;
use earrrl::internal::lock;
use earrrl_redis::{SharedEntries, SharedEntry};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex as AsyncMutex;

use super::error::AskError;
use super::overrides::{MAX_AT_RUN_TIME, OverridesPlan};
use super::rule::ActiveRule;
use super::rules::ActiveRules;
use crate::config::rule::Override;
use crate::config::{EngineConfig, MAX_FILE_LEN, read_bytes};
use crate::engine::Engine;
use crate::engine::redis::Redis;
use crate::metrics::{Counter, Family};

/// The length of the longest key of an override, in bytes of all its parts.
const MAX_KEY_LEN: usize = 1024;
/// The length of the longest limit, in bytes.
const MAX_LIMIT_LEN: usize = 256;

/// The rule and the client of an override, whose parts are the values of the attributes of the rule's key.
pub type OverrideKey = (String, Vec<String>);

/// An override that was set at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTimeOverride {
    /// The name of the rule.
    pub rule: String,
    /// The values of the attributes of the rule's key.
    pub key: Vec<String>,
    /// The limit of the client.
    pub limit: String,
    /// The end of the override, in seconds since the Unix epoch; `None` if it has none.
    pub expires: Option<u64>,
    /// The name of the token that set the override; `None` if the server has no tokens.
    pub by: Option<String>,
    /// The time at which the override was set, in seconds since the Unix epoch.
    pub at: u64,
}

impl RunTimeOverride {
    /// Returns the rule and the client.
    pub fn id(&self) -> OverrideKey {
        (self.rule.clone(), self.key.clone())
    }

    /// Returns the override as the rule's table of overrides has it.
    ///
    /// # Errors
    /// Returns an [`AskError::Invalid`] if the rule cannot have it.
    pub(super) fn read(&self, rule: &ActiveRule) -> Result<Override, AskError> {
        let length: usize = self.key.iter().map(String::len).sum();
        if length > MAX_KEY_LEN {
            let why = format!("key: {length} bytes; at most {MAX_KEY_LEN}");
            return Err(AskError::Invalid(why));
        }
        if self.limit.len() > MAX_LIMIT_LEN {
            let why = format!("limit: {} bytes; at most {MAX_LIMIT_LEN}", self.limit.len());
            return Err(AskError::Invalid(why));
        }
        rule.override_of(&self.key, &self.limit)
            .map_err(AskError::Invalid)
    }

    pub(super) fn has_ended(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// A change of the overrides.
#[derive(Clone, Debug)]
pub(super) enum OverrideChange {
    Set(RunTimeOverride),
    Remove(OverrideKey),
    /// Removes this override, unless it was set again.
    Expire(RunTimeOverride),
}

impl OverrideChange {
    pub(super) fn id(&self) -> OverrideKey {
        match self {
            Self::Set(set) | Self::Expire(set) => set.id(),
            Self::Remove(id) => id.clone(),
        }
    }

    /// Applies the change to a map of overrides.
    pub(super) fn apply(&self, to: &mut BTreeMap<OverrideKey, RunTimeOverride>) {
        match self {
            Self::Set(set) => drop(to.insert(set.id(), set.clone())),
            Self::Remove(id) => drop(to.remove(id)),
            Self::Expire(set) if to.get(&set.id()) == Some(set) => drop(to.remove(&set.id())),
            Self::Expire(_) => {}
        }
    }
}

/// An override, and its form in the table of its rule; `None` if it is not in force, since no rule can have it.
#[derive(Clone, Debug)]
pub(super) struct TableEntry {
    pub(super) set: RunTimeOverride,
    pub(super) active: Option<Override>,
}

/// The greatest number of different limits that overrides may have had since the process began. Each has a state file
/// if there are any, and takes about a kilobyte of memory otherwise.
const MAX_FILES: usize = 256;
const MAX_LIMITS: usize = 100_000;

/// The overrides that were set at run time.
#[derive(Debug, Default)]
pub struct RunTimeOverrides {
    /// Held while overrides change, here and in the store.
    pub(super) changing: AsyncMutex<Shared>,
    kept: Mutex<Kept>,
    /// The file in the state directory, if there is one.
    pub(super) file: Option<Mutex<OverridesFile>>,
    pub(super) set: Counter,
    pub(super) removed: Counter,
    pub(super) expired: Counter,
}

/// The state of the overrides that all servers of one Redis share, as this server has read it last.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The version of the overrides in Redis that was read last.
    pub(super) version: Option<u64>,
    /// The last reason why the overrides could not be read, which is logged once.
    pub(super) trouble: Option<String>,
}

/// The overrides here. Whoever replaces the active rules holds the lock, so that no change gets lost.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The overrides by rule and client.
    table: BTreeMap<OverrideKey, TableEntry>,
    /// The names of the limits that were prepared in the engine.
    prepared: HashSet<Arc<str>>,
}

impl RunTimeOverrides {
    /// Returns the overrides that are kept in the state directory; none are read from Redis yet.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub(super) fn new(config: &EngineConfig) -> Result<Self, EngineError> {
        let mut all = Self::default();
        if let EngineConfig::State(state) = config {
            let mut file = OverridesFile::new(&state.directory);
            let sets = file.read_changed().map_err(EngineError::Unavailable)?;
            for set in sets.unwrap_or_default() {
                let entry = TableEntry { set, active: None };
                all.lock().replace(entry.set.id(), Some(entry));
            }
            all.file = Some(Mutex::new(file));
        }
        Ok(all)
    }

    /// Returns the metrics of overrides.
    pub fn metrics(&self) -> [Family; 2] {
        let named = [
            ("set", &self.set),
            ("removed", &self.removed),
            ("expired", &self.expired),
        ];
        let changes = named.map(|(name, counter)| (name, counter.get() as f64));
        let help = "Changes of overrides at run time, here and by other servers.";
        [
            Family::gauge("earrrl_overrides", "Overrides that were set at run time.")
                .value(self.lock().table.len() as f64),
            Family::counter("earrrl_override_changes_total", help).labelled("change", changes),
        ]
    }

    /// Returns the overrides, locked.
    pub(super) fn lock(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }
}

impl Kept {
    pub(super) fn get(&self, id: &OverrideKey) -> Option<&TableEntry> {
        self.table.get(id)
    }

    /// Returns true if the client's override is gone or another than this one.
    pub(super) fn has_other(&self, set: &RunTimeOverride) -> bool {
        self.get(&set.id()).is_none_or(|entry| entry.set != *set)
    }

    /// Puts an entry in place of the one of this client, or removes that if there is none.
    pub(super) fn replace(&mut self, id: OverrideKey, entry: Option<TableEntry>) {
        match entry {
            Some(entry) => drop(self.table.insert(id, entry)),
            None => drop(self.table.remove(&id)),
        }
    }

    /// Returns an error if there is no place for one more override.
    pub(super) fn check_place(&self, id: &OverrideKey) -> Result<(), AskError> {
        if self.table.len() < MAX_AT_RUN_TIME || self.table.contains_key(id) {
            return Ok(());
        }
        let why = format!(
            "overrides: {MAX_AT_RUN_TIME} are set, and no more may be; delete some, or write them into the file"
        );
        Err(AskError::Invalid(why))
    }

    /// Returns the overrides of a rule that are in force.
    fn of_rule<'a>(&'a self, rule: &'a str) -> impl Iterator<Item = &'a Override> {
        let first = Bound::Included((rule.to_owned(), Vec::new()));
        let rest = self.table.range((first, Bound::Unbounded));
        rest.take_while(move |((name, _), _)| name == rule)
            .filter_map(|(_, entry)| entry.active.as_ref())
    }

    /// Returns the overrides behind `after`, in the order of rules and clients.
    pub(super) fn behind<'a>(
        &'a self,
        after: Option<&OverrideKey>,
    ) -> impl Iterator<Item = &'a TableEntry> + use<'a> {
        let first = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
        self.table
            .range((first, Bound::Unbounded))
            .map(|(_, entry)| entry)
    }

    /// Returns the names of the rules that have overrides.
    fn rules(&self) -> BTreeSet<String> {
        self.table.keys().map(|(rule, _)| rule.clone()).collect()
    }

    /// Reads the overrides of all rules again, since the rules have changed. Logs those that are no longer in force.
    fn read_again<'r>(&mut self, rule: impl Fn(&str) -> Option<&'r ActiveRule>) {
        for entry in self.table.values_mut() {
            let TableEntry { set, active } = entry;
            let read = match rule(&set.rule) {
                Some(rule) => set.read(rule),
                None => Err(AskError::unknown_rule(set.rule.as_bytes())),
            };
            if let Err(error) = &read {
                tracing::warn!(rule = set.rule, %error, "an override is not in force");
            }
            *active = read.ok();
        }
    }

    /// Returns the overrides that have ended by `now`.
    pub(super) fn ended(&self, now: u64) -> Vec<OverrideChange> {
        let sets = self.table.values().map(|entry| &entry.set);
        sets.filter(|set| set.has_ended(now))
            .cloned()
            .map(OverrideChange::Expire)
            .collect()
    }

    /// Returns the changes that make these overrides equal to `wanted`.
    pub(super) fn changes_to(&self, wanted: Vec<RunTimeOverride>) -> Vec<OverrideChange> {
        let wanted: BTreeMap<_, _> = wanted.into_iter().map(|set| (set.id(), set)).collect();
        let gone = self.table.keys().filter(|id| !wanted.contains_key(id));
        let gone = gone.cloned().map(OverrideChange::Remove);
        let gone: Vec<_> = gone.collect();
        let set = wanted
            .into_values()
            .filter(|set| self.has_other(set))
            .map(OverrideChange::Set);
        gone.into_iter().chain(set).collect()
    }

    /// Returns new rules with the overrides in force. Those that cannot be are logged.
    pub(super) fn with_all(&mut self, mut rules: ActiveRules, engine: &Engine) -> ActiveRules {
        self.read_again(|name| rules.get(name.as_bytes()));
        for rule in self.rules() {
            match self.with_rule(&rules, &rule, engine) {
                Ok(changed) => rules = changed.unwrap_or(rules),
                Err(error) => tracing::error!(rule, %error, "overrides are not in force"),
            }
        }
        rules.set_verdicts_on_error(engine);
        rules
    }

    /// Returns the rules with the present overrides of the rule of this name; `None` if there is no such rule.
    pub(super) fn with_rule(
        &mut self,
        rules: &ActiveRules,
        name: &str,
        engine: &Engine,
    ) -> Result<Option<ActiveRules>, AskError> {
        let name = name.as_bytes();
        let (Some(place), Some(rule)) = (rules.position(name), rules.get(name)) else {
            return Ok(None);
        };
        let plan = self.plan(rules, rule, None, engine)?;
        let ids = engine.prepare_all(&plan.limits.iter().collect::<Vec<_>>())?;
        let changed = rule.with_overrides(&plan, ids);
        let names: Vec<_> = plan.limits.into_iter().map(|limit| limit.name).collect();
        self.prepared.extend(names);
        Ok(Some(rules.with(place, changed)))
    }

    /// Plans the present overrides of a rule, and a new one.
    ///
    /// # Errors
    /// Returns an [`AskError`] if they have more different limits than there may be.
    pub(super) fn plan<'a>(
        &'a self,
        rules: &'a ActiveRules,
        rule: &'a ActiveRule,
        new: Option<&'a Override>,
        engine: &Engine,
    ) -> Result<OverridesPlan<'a>, AskError> {
        let names: HashSet<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
        let entries = new.into_iter().chain(self.of_rule(&rule.name));
        let plan = OverridesPlan::at_run_time(&rule.config, entries.collect(), engine, &names);
        let limits = plan.limits.iter().map(|limit| &limit.name);
        let new = limits.filter(|name| !self.prepared.contains(*name)).count();
        let most = if engine.has_files() {
            MAX_FILES
        } else {
            MAX_LIMITS
        };
        if self.prepared.len() + new > most {
            let why = format!(
                "limit: overrides have had {most} different limits since the server started, and no more may be; \
                 restart it"
            );
            return Err(AskError::Invalid(why));
        }
        Ok(plan)
    }
}

/// The file of the overrides, of its lock, and of the next version of it.
const FILE: &str = "overrides.json";
const LOCK: &str = "overrides.lock";
const NEXT: &str = "overrides.tmp";

/// The device, number, length and time of a file, which are others once it was replaced.
type Stamp = [i128; 5];

/// The file in a state directory that has all overrides. Servers that share the directory replace it as a whole.
#[derive(Debug)]
pub(super) struct OverridesFile {
    directory: PathBuf,
    /// The stamp of the file that was read last.
    seen: Option<Stamp>,
}

impl OverridesFile {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            seen: None,
        }
    }

    /// Returns the overrides if the file was replaced since it was read last.
    pub(super) fn read_changed(&mut self) -> Result<Option<Vec<RunTimeOverride>>, String> {
        let path = self.directory.join(FILE);
        let stamp = match fs::metadata(&path) {
            Ok(metadata) => Some(stamp(&metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        if stamp == self.seen {
            return Ok(None);
        }
        self.seen = stamp;
        self.read().map(Some)
    }

    fn read(&self) -> Result<Vec<RunTimeOverride>, String> {
        let path = self.directory.join(FILE);
        let failed = |error: String| format!("{}: {error}", path.display());
        match read_bytes(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Applies changes to the file, which is on the disk when this returns.
    pub(super) fn change(&self, changes: &[OverrideChange]) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", self.directory.display());
        let lock = self.open(LOCK).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let sets = self.read()?.into_iter().map(|set| (set.id(), set));
        let mut all: BTreeMap<OverrideKey, RunTimeOverride> = sets.collect();
        changes.iter().for_each(|change| change.apply(&mut all));
        let all: Vec<_> = all.into_values().collect();
        let text = serde_json::to_vec(&all).map_err(|error| failed(error.into()))?;
        if text.len() as u64 > MAX_FILE_LEN {
            return Err(format!(
                "overrides: {} bytes; at most {MAX_FILE_LEN}",
                text.len()
            ));
        }
        self.write(&text).map_err(failed)
    }

    fn write(&self, text: &[u8]) -> io::Result<()> {
        let next = self.directory.join(NEXT);
        let mut file = self.open(NEXT)?;
        file.set_len(0)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(next, self.directory.join(FILE))?;
        File::open(&self.directory)?.sync_all()
    }

    fn open(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.open(self.directory.join(name))
    }
}

fn stamp(file: &Metadata) -> Stamp {
    [
        file.dev().into(),
        file.ino().into(),
        file.len().into(),
        file.mtime().into(),
        file.mtime_nsec().into(),
    ]
}

/// Applies changes to the overrides in Redis.
pub(super) async fn change_in_redis(
    redis: &Redis,
    changes: &[OverrideChange],
) -> Result<(), EngineError> {
    for change in changes {
        let name = json(&change.id())?;
        let entry = match change {
            OverrideChange::Set(set) => SharedEntry::Set(json(set)?),
            OverrideChange::Remove(_) => SharedEntry::Remove,
            OverrideChange::Expire(set) => SharedEntry::RemoveIf(json(set)?),
        };
        redis.share(&name, &entry).await?;
    }
    Ok(())
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, EngineError> {
    serde_json::to_vec(value).map_err(|error| EngineError::Unavailable(error.to_string()))
}

/// Returns the overrides in Redis and their version, unless that is `known`. Entries that cannot be read are left out.
pub(super) async fn read_from_redis(
    redis: &Redis,
    known: Option<u64>,
) -> Result<Option<(u64, Vec<RunTimeOverride>)>, EngineError> {
    let read = |entries: SharedEntries| {
        let sets = entries.texts.iter();
        let sets = sets.filter_map(|text| serde_json::from_slice(text).ok());
        (entries.version, sets.collect())
    };
    Ok(redis.shared_entries(known).await?.map(read))
}
