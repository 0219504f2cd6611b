//! Overrides that are set while the server runs: another limit for one client of a rule, in force at the next decision
//! after it was set.
//!
//! They are overrides like those of the configuration, and come before these. A change replaces the table of the rule,
//! so that decisions do nothing for it. What was set is kept in the state directory or in Redis, and without either
//! until the process ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use earrrl::EngineError;
use earrrl::internal::lock;

use super::Service;
use super::error::AskError;
use super::names::Notice;
use super::override_table::{
    OverrideChange, OverrideKey, RunTimeOverride, TableEntry, change_in_redis, read_from_redis,
};
use crate::config::access::Access;
use crate::engine::redis::Redis;

/// # Setting and reading overrides
impl Service {
    /// Sets the override of a client, or sets it anew, and returns it. It is in force and kept then.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the rule cannot have it, or it cannot be kept.
    pub async fn set_override(
        self: &Arc<Self>,
        id: OverrideKey,
        limit: String,
        expires: Option<u64>,
        access: &Access,
    ) -> Result<RunTimeOverride, AskError> {
        let (rule, key) = id;
        let at = self.whole_seconds();
        if let Some(expires) = expires.filter(|expires| *expires <= at) {
            let why = format!("expires: {expires} is not after now, {at}");
            return Err(AskError::Invalid(why));
        }
        self.rules().named(rule.as_bytes())?;
        let set = RunTimeOverride {
            rule,
            key,
            limit,
            expires,
            by: access.name().map(str::to_owned),
            at,
        };
        let change = OverrideChange::Set(set.clone());
        self.change_overrides(vec![change]).await.map(|()| set)
    }

    /// Removes an override. Returns false if there is none.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the removal cannot be kept.
    pub async fn remove_override(self: &Arc<Self>, id: OverrideKey) -> Result<bool, AskError> {
        if self.override_of(&id).is_none() {
            return Ok(false);
        }
        let removal = vec![OverrideChange::Remove(id)];
        self.change_overrides(removal).await.map(|()| true)
    }

    /// Returns the override of a client, and true if it is in force.
    pub fn override_of(&self, id: &OverrideKey) -> Option<(RunTimeOverride, bool)> {
        let kept = self.run_time.lock();
        kept.get(id).map(shown)
    }

    /// Returns at most `most` overrides behind `after` that `wanted` accepts, each with true if it is in force.
    pub fn overrides(
        &self,
        after: Option<&OverrideKey>,
        most: usize,
        wanted: impl Fn(&RunTimeOverride) -> bool,
    ) -> Vec<(RunTimeOverride, bool)> {
        let kept = self.run_time.lock();
        let all = kept.behind(after).filter(|one| wanted(&one.set));
        all.take(most).map(shown).collect()
    }

    /// Ends the overrides whose time has come, and reads those that other servers have set. Call it every second.
    pub async fn refresh_overrides(self: &Arc<Self>) {
        let ended = self.run_time.lock().ended(self.whole_seconds());
        if !ended.is_empty()
            && let Err(error) = self.change_overrides(ended).await
        {
            tracing::warn!(%error, "overrides that have ended are still kept");
        }
        let mut shared = self.run_time.changing.lock().await;
        let read = match self.engine.redis() {
            Some(redis) => read_from_redis(redis, shared.version)
                .await
                .map_err(|error| error.to_string()),
            None => self
                .off_thread(|service| match &service.run_time.file {
                    Some(file) => lock(file).read_changed().map_err(AskError::Invalid),
                    None => Ok(None),
                })
                .await
                .map_err(|error| error.to_string())
                .map(|sets| sets.map(|sets| (0, sets))),
        };
        let followed = match read {
            Ok(Some((version, sets))) => {
                shared.version = Some(version);
                let followed = self.off_thread(move |service| service.follow(sets)).await;
                followed.map_err(|error| error.to_string())
            }
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let trouble = followed.err();
        if let Some(error) = &trouble
            && shared.trouble != trouble
            && self.engine.redis().is_none_or(Redis::decides)
        {
            tracing::warn!(error, "overrides that were set elsewhere are not in force");
        }
        shared.trouble = trouble;
    }
}

fn shown(entry: &TableEntry) -> (RunTimeOverride, bool) {
    (entry.set.clone(), entry.active.is_some())
}

/// # Changes
impl Service {
    /// Returns the time in whole seconds since the Unix epoch.
    fn whole_seconds(&self) -> u64 {
        self.now().get() / 1_000_000_000
    }

    /// Applies changes in the store, and then here. A client that leaves meanwhile does not stop them halfway.
    async fn change_overrides(
        self: &Arc<Self>,
        changes: Vec<OverrideChange>,
    ) -> Result<(), AskError> {
        let service = Arc::clone(self);
        let changed = tokio::spawn(async move {
            let _turn = service.run_time.changing.lock().await;
            let changes = Arc::new(changes);
            let here = Arc::clone(&changes);
            let keep = move |service: &Self| service.keep_here(&here);
            let stored = match (service.off_thread(keep).await, service.engine.redis()) {
                (Ok(()), Some(redis)) => change_in_redis(redis, &changes)
                    .await
                    .map_err(AskError::from),
                (stored, _) => stored,
            };
            // Overrides end whether or not the store can be told.
            let has_ended = matches!(changes.first(), Some(OverrideChange::Expire(_)));
            if stored.is_ok() || has_ended {
                service
                    .off_thread(move |service| service.apply(&changes))
                    .await?;
            }
            stored
        });
        changed
            .await
            .map_err(|error| AskError::invalid(error.to_string()))?
    }

    /// Runs work that takes long, or waits for a disk, on another thread.
    async fn off_thread<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, AskError> + Send + 'static,
    ) -> Result<T, AskError> {
        let service = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&service)).await;
        done.unwrap_or_else(|error| Err(AskError::invalid(error.to_string())))
    }

    /// Checks that changes can be made, and writes them into the state directory if there is one.
    fn keep_here(&self, changes: &[OverrideChange]) -> Result<(), AskError> {
        for change in changes {
            if let OverrideChange::Set(set) = change {
                let kept = self.run_time.lock();
                kept.check_place(&set.id())?;
                let rules = self.rules.load();
                let rule = rules.named(set.rule.as_bytes())?;
                let new = set.read(rule)?;
                kept.plan(&rules, rule, Some(&new), &self.engine)?;
            }
        }
        let stored = match &self.run_time.file {
            Some(file) => lock(file).change(changes),
            None => Ok(()),
        };
        stored.map_err(|why| EngineError::Unavailable(why).into())
    }

    /// Puts changes into force.
    fn apply(&self, changes: &[OverrideChange]) -> Result<(), AskError> {
        let mut kept = self.run_time.lock();
        let mut rules = self.rules.load_full();
        let mut changed = BTreeSet::new();
        for change in changes {
            let entry = match change {
                OverrideChange::Expire(set) if kept.has_other(set) => continue,
                OverrideChange::Set(set) => {
                    let rule = rules.named(set.rule.as_bytes());
                    let active = rule.and_then(|rule| set.read(rule)).ok();
                    let set = set.clone();
                    Some(TableEntry { set, active })
                }
                OverrideChange::Remove(_) | OverrideChange::Expire(_) => None,
            };
            let id = change.id();
            changed.insert(id.0.clone());
            kept.replace(id, entry);
        }
        let mut applied = Ok(());
        for name in changed {
            match kept.with_rule(&rules, &name, &self.engine) {
                Ok(changed) => rules = changed.map_or(rules, Arc::new),
                Err(error) => applied = Err(error),
            }
        }
        rules.set_verdicts_on_error(&self.engine);
        self.rules.store(rules);
        drop(kept);
        self.announce_changes(changes);
        applied
    }

    /// Makes the overrides here those that the store has.
    fn follow(&self, mut sets: Vec<RunTimeOverride>) -> Result<(), AskError> {
        let now = self.whole_seconds();
        sets.retain(|set| !set.has_ended(now));
        let changes = self.run_time.lock().changes_to(sets);
        self.apply(&changes)
    }

    /// Counts changes, and tells them to those who follow the events.
    fn announce_changes(&self, changes: &[OverrideChange]) {
        let rules = self.rules.load();
        for change in changes {
            let (counter, set) = match change {
                OverrideChange::Set(set) => (&self.run_time.set, Some(set)),
                OverrideChange::Remove(_) => (&self.run_time.removed, None),
                OverrideChange::Expire(_) => (&self.run_time.expired, None),
            };
            counter.increment();
            let (name, parts) = change.id();
            if let Some(rule) = rules.get(name.as_bytes()) {
                let what = Notice::Override {
                    limit: set.map(|set| set.limit.clone()),
                    expires: set.and_then(|set| set.expires),
                    by: set.and_then(|set| set.by.clone()),
                };
                self.tell(rule, &rule.key_of(&parts), what);
            }
        }
    }
}
