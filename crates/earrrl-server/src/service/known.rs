//! The limits that the engine has prepared for the current configuration. When a new configuration
//! lacks some of them, their tables can release memory.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use earrrl::{EngineError, RuleId};

use crate::engine::{Engine, PlannedLimit};

/// The prepared limits with tables of their own.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Vec<PlannedLimit>>);

impl Known {
    /// Prepares all limits in `wanted`, or none of them if there is an error. The tables of limits
    /// that are no longer wanted shrink to the smallest size once they have no live clients, unless they are in files. Maps of larger states keep
    /// their capacity, since they take memory only for the clients that they have. The limits themselves stay in the
    /// engine, since requests in flight may still use them, and so do the clients of a shared store.
    pub(super) fn prepare(
        &self,
        engine: &Engine,
        wanted: &[&PlannedLimit],
    ) -> Result<Vec<RuleId>, EngineError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names: HashSet<&str> = wanted.iter().map(|limit| &*limit.name).collect();
        let shrinks = |limit: &&PlannedLimit| !engine.has_files() && !names.contains(&*limit.name);
        let gone: Vec<PlannedLimit> = known
            .iter()
            .filter(shrinks)
            .map(|limit| {
                let mut gone = limit.clone();
                if gone.rule.limit().fits_words() {
                    gone.capacity = 1;
                }
                gone
            })
            .collect();
        let all: Vec<&PlannedLimit> = wanted.iter().copied().chain(&gone).collect();
        let mut ids = engine.prepare_all(&all)?;
        // Rules begin afresh, or keep another capacity, since they were prepared.
        let notices = engine.memory().map(|memory| memory.notices());
        for notice in notices.unwrap_or_default() {
            if names.contains(notice.rule()) {
                tracing::warn!("{notice}");
            }
        }
        ids.truncate(wanted.len());
        let own = wanted.iter().filter(|limit| limit.store.is_none());
        *known = own.map(|limit| (*limit).clone()).collect();
        Ok(ids)
    }
}
