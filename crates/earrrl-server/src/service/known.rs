//! The limits that the engine has prepared for the current configuration. When a new configuration
//! lacks some of them, their tables can release memory.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use earrrl::{EngineError, Rule, RuleId};
use earrrl_redis::Consistency;

use crate::engine::{Engine, PlannedLimit};

/// The prepared limits.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Vec<KnownLimit>>);

/// A prepared limit. The plans of the configuration share the rules.
#[derive(Debug)]
struct KnownLimit {
    /// The limit's name in the engine.
    name: Box<str>,
    rule: Arc<Rule>,
    /// The name of the store that the limit shares with others.
    store: Option<Box<str>>,
}

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
        let names: HashSet<&str> = wanted.iter().map(|limit| limit.name).collect();
        let gone = known.iter().filter(|limit| !names.contains(&*limit.name));
        let gone = gone.map(|KnownLimit { name, rule, store }| {
            let (consistency, store) = (Consistency::Exact, store.as_deref());
            PlannedLimit { name, rule, capacity: 1, consistency, store }
        });
        let all: Vec<_> = wanted.iter().copied().chain(gone).collect();
        let mut ids = engine.prepare_all(&all)?;
        ids.truncate(wanted.len());
        *known = wanted.iter().map(KnownLimit::from).collect();
        Ok(ids)
    }
}

impl From<&PlannedLimit<'_>> for KnownLimit {
    fn from(PlannedLimit { name, rule, store, .. }: &PlannedLimit<'_>) -> Self {
        Self { name: (*name).into(), rule: Arc::clone(rule), store: store.map(Box::from) }
    }
}
