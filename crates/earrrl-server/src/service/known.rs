//! The limits that the engine has prepared for the current configuration. When a new configuration
//! lacks some of them, their tables can release memory.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use earrrl::{EngineError, Rule, RuleId};
use earrrl_redis::Consistency;

use crate::engine::Engine;

/// The prepared limits, with their names in the engine. The plans of the configuration share the
/// rules.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Vec<(Box<str>, Arc<Rule>)>>);

/// A limit to prepare: its name in the engine, its rule, the number of clients to size its table
/// for, and its consistency between servers.
pub(super) type PlannedLimit<'a> = (&'a str, &'a Arc<Rule>, usize, Consistency);

impl Known {
    /// Prepares all limits in `wanted`, or none of them if there is an error. The tables of limits
    /// that are no longer wanted shrink to the smallest size. The limits themselves stay in the
    /// engine, since requests in flight may still use them.
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
