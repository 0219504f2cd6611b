//! The limits that the engine has prepared for a configuration, so that those which the next one lacks
//! give their memory back.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use earrrl::{EngineError, Rule, RuleId};
use earrrl_redis::Consistency;

use crate::engine::Engine;

/// Limits with their names in the engine. Their rules are shared with the plans that asked for them.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Vec<(Box<str>, Arc<Rule>)>>);

/// A limit that a plan asks for: its name in the engine, its rule, and the number of its clients.
pub(super) type PlannedLimit<'a> = (&'a str, &'a Arc<Rule>, usize, Consistency);

impl Known {
    /// Prepares limits, all of them or on an error none. Those that are no longer wanted shrink to the
    /// smallest table: an engine forgets no rule, since a request may still know it.
    pub(super) fn prepare(
        &self,
        engine: &Engine,
        wanted: &[PlannedLimit<'_>],
    ) -> Result<Vec<RuleId>, EngineError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names: HashSet<&str> = wanted.iter().map(|(name, ..)| *name).collect();
        let gone = known.iter().filter(|(name, _)| !names.contains(&**name));
        let gone = gone.map(|(name, rule)| (&**name, rule, 1, Consistency::Exact));
        let all = wanted.iter().copied().chain(gone);
        let all: Vec<_> =
            all.map(|(name, rule, clients, how)| (name, &**rule, clients, how)).collect();
        let mut ids = engine.prepare_all(&all)?;
        ids.truncate(wanted.len());
        *known = wanted.iter().map(|(name, rule, ..)| ((*name).into(), Arc::clone(rule))).collect();
        Ok(ids)
    }
}
