//! Limits that are prepared in the engine, their names there, and those of the current configuration: when a new
//! one lacks some of them, their tables can release memory.

use std::collections::HashSet;
use std::sync::Mutex;

use earrrl::internal::{Places, lock};
use earrrl::{EngineError, Quota, Rule, RuleId};
use siphasher::sip::SipHasher13;

use crate::engine::{Engine, PlannedLimit};

/// A limit that is prepared in the engine.
#[derive(Clone, Debug)]
pub struct PreparedLimit {
    /// The id of the limit in the engine.
    pub id: RuleId,
    /// The limit and its action, as an engine's rule.
    pub rule: Rule,
    /// The quota that the `RateLimit-Policy` header reports for the limit.
    pub quota: Quota,
    /// The number of remaining requests below which a client is named.
    pub named_below: u64,
}

impl PreparedLimit {
    pub(super) fn new(id: RuleId, rule: &Rule, named_below: u64) -> Self {
        Self {
            id,
            quota: Quota::of(rule.limit()),
            rule: rule.clone(),
            named_below,
        }
    }
}

/// Returns a name in the engine for a limit that has no name in the configuration. The name
/// depends on `text` only, so that a reload finds the clients' state, and servers of different
/// versions that use one Redis share it.
pub(super) fn hidden_name(taken: &HashSet<&str>, text: &str) -> String {
    let mut name = format!("hidden-{:016x}", SipHasher13::new().hash(text.as_bytes()));
    while taken.contains(name.as_str()) {
        name.push('_');
    }
    name
}

/// Returns the places of a decision under one limit.
pub(super) fn places(is_over: bool) -> Places {
    is_over.then_some(0).into_iter().collect()
}

/// The prepared limits with tables of their own.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Vec<PlannedLimit>>);

impl Known {
    /// Prepares all limits in `wanted`, or none of them if there is an error. The tables of limits
    /// that are no longer wanted shrink to the smallest size once they have no live clients, unless they are in
    /// files. Maps of larger states keep their capacity, since they take memory only for the clients that they have.
    /// The limits themselves stay in the engine, since requests in flight may still use them, and so do the clients
    /// of a shared store.
    pub(super) fn prepare(
        &self,
        engine: &Engine,
        wanted: &[&PlannedLimit],
    ) -> Result<Vec<RuleId>, EngineError> {
        let mut known = lock(&self.0);
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
