//! Overrides that are set while the server runs: another limit for one client of a rule, in force at the next decision
//! after it was set.
//!
//! They are overrides like those of the configuration, and come before these. A change replaces the table of the rule,
//! so that decisions do nothing for it. What was set is kept in the state directory or in Redis, and without either
//! until the process ends.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

use earrrl::EngineError;
use earrrl::internal::lock;
use tokio::sync::Mutex as AsyncMutex;

use super::error::AskError;
use super::override_store::OverridesFile;
use super::override_table::{Table, TableEntry};
use super::overrides::OverridesPlan;
use super::rule::ActiveRule;
use super::rules::ActiveRules;
use crate::config::EngineConfig;
use crate::config::rule::Override;
use crate::engine::Engine;
use crate::metrics::{Counter, Family};

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
    pub(super) table: Table,
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
                all.lock().table.replace(entry.set.id(), Some(entry));
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
    /// Returns new rules with the overrides in force. Those that cannot be are logged.
    pub(super) fn with_all(&mut self, mut rules: ActiveRules, engine: &Engine) -> ActiveRules {
        self.table.read_again(|name| rules.get(name.as_bytes()));
        for rule in self.table.rules() {
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
        let entries = new.into_iter().chain(self.table.of_rule(&rule.name));
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
