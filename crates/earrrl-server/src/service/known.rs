//! The limits that the engine has prepared for a configuration, so that those which the next one lacks
//! give their memory back.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use earrrl::{EngineError, Rule, RuleId};
use earrrl_redis::Consistency;

use crate::engine::Engine;

/// Limits by their names in the engine.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<String, Rule>>);

impl Known {
    /// Prepares limits, all of them or on an error none. Those that are no longer wanted shrink to the
    /// smallest table: an engine forgets no rule, since a request may still know it.
    pub(super) fn prepare(
        &self,
        engine: &Engine,
        wanted: &[(&str, &Rule, usize, Consistency)],
    ) -> Result<Vec<RuleId>, EngineError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names: HashSet<&str> = wanted.iter().map(|(name, ..)| *name).collect();
        let gone = known.iter().filter(|(name, _)| !names.contains(name.as_str()));
        let gone = gone.map(|(name, rule)| (name.as_str(), rule, 1, Consistency::Exact));
        let all: Vec<_> = wanted.iter().copied().chain(gone).collect();
        let mut ids = engine.prepare_all(&all)?;
        ids.truncate(wanted.len());
        *known =
            wanted.iter().map(|(name, rule, ..)| ((*name).to_owned(), (*rule).clone())).collect();
        Ok(ids)
    }
}
