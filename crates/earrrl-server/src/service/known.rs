//! The limits that the engine has prepared for the current configuration. When a new configuration
//! lacks some of them, their tables can release memory.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use earrrl::{EngineError, Rule, RuleId};
use earrrl_redis::Consistency;

use crate::engine::{Engine, PlannedLimit};

/// The prepared limits with tables of their own.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Vec<KnownLimit>>);

#[derive(Debug)]
struct KnownLimit {
    /// The name in the engine.
    name: Box<str>,
    /// The rule, which the plans of the configuration share.
    rule: Arc<Rule>,
    capacity: usize,
}

impl Known {
    /// Prepares all limits in `wanted`, or none of them if there is an error. The tables of limits
    /// that are no longer wanted shrink to the smallest size once they have no live clients, unless they are in files. Maps of larger states keep
    /// their capacity, since they take memory only for the clients that they have. The limits themselves stay in the
    /// engine, since requests in flight may still use them, and so do the clients of a shared store.
    pub(super) fn prepare(
        &self,
        engine: &Engine,
        wanted: &[PlannedLimit<'_>],
    ) -> Result<Vec<RuleId>, EngineError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names: HashSet<&str> = wanted.iter().map(|limit| limit.name).collect();
        let shrinks = |name: &str| !engine.has_files() && !names.contains(name);
        let gone = known.iter().filter(|limit| shrinks(&limit.name));
        let gone = gone.map(
            |KnownLimit {
                 name,
                 rule,
                 capacity,
             }| {
                let capacity = if rule.limit().fits_words() {
                    1
                } else {
                    *capacity
                };
                let consistency = Consistency::Exact;
                PlannedLimit {
                    name,
                    rule,
                    capacity,
                    consistency,
                    store: None,
                }
            },
        );
        let all: Vec<_> = wanted.iter().copied().chain(gone).collect();
        let mut ids = engine.prepare_all(&all)?;
        engine.log_notices(|name| names.contains(name));
        ids.truncate(wanted.len());
        let own = wanted.iter().filter(|limit| limit.store.is_none());
        let own = own.map(|limit| KnownLimit {
            name: limit.name.into(),
            rule: Arc::clone(limit.rule),
            capacity: limit.capacity,
        });
        *known = own.collect();
        Ok(ids)
    }
}
