//! The limits that requests bring themselves. The least recently used ones are evicted.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use earrrl::EngineError;
use lru::LruCache;

use super::limit::{Current, DescriptorLimit, LimitKind};
use crate::config::envoy::EnvoyAlgorithm;
use crate::config::envoy::unit::Unit;
use crate::engine::Engine;

/// The greatest number of different limits that are kept at once.
const MAX_OVERRIDES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// The number of clients that the table of one such limit is sized for.
const CLIENTS: usize = 10_000;

/// The limits that requests brought, and that are still kept. A reload of the configuration keeps
/// them.
pub struct RequestOverrides(Mutex<LruCache<OverrideKey, PlacedLimit, foldhash::fast::RandomState>>);

/// The algorithm of a limit, its number of requests, and its unit of time.
type OverrideKey = (EnvoyAlgorithm, u32, Unit);

/// A limit, and the number of its table, which is below [`MAX_OVERRIDES`].
type PlacedLimit = (usize, Arc<DescriptorLimit>);

impl Default for RequestOverrides {
    fn default() -> Self {
        Self(Mutex::new(LruCache::with_hasher(
            MAX_OVERRIDES,
            foldhash::fast::RandomState::default(),
        )))
    }
}

impl fmt::Debug for RequestOverrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestOverrides")
    }
}

impl RequestOverrides {
    /// Returns the limit for this key, and creates it on first use. A new limit evicts the least
    /// recently used one if `MAX_OVERRIDES` are kept.
    ///
    /// # Errors
    /// Returns an [`EngineError`] if the limit is invalid or the engine is unavailable.
    pub fn get(
        &self,
        key: OverrideKey,
        engine: &Engine,
    ) -> Result<Arc<DescriptorLimit>, EngineError> {
        let mut limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = limits.get(&key) {
            return Ok(Arc::clone(known));
        }
        let place = match limits.len() {
            free if free < MAX_OVERRIDES.get() => free,
            _ => limits.peek_lru().map_or(0, |(_, (place, _))| *place),
        };
        let limit = Arc::new(new_limit(key, place, engine)?);
        limits.push(key, (place, Arc::clone(&limit)));
        Ok(limit)
    }
}

fn new_limit(
    (algorithm, requests, unit): OverrideKey,
    place: usize,
    engine: &Engine,
) -> Result<DescriptorLimit, EngineError> {
    let kind = match algorithm.rule(requests, unit)? {
        None => LimitKind::Zero(unit),
        Some(rule) => {
            // The engine keeps every rule that it has prepared, so in memory a new limit reuses
            // the name and the table of the evicted one. With Redis, all servers must use the same
            // name for the same limit.
            let name = match engine.waits() {
                true => format!("envoy-override-{requests}-{}", unit.name()),
                false => format!("envoy-override-{place}"),
            };
            LimitKind::Counted(engine.prepare(&name, &rule, CLIENTS)?, Arc::new(rule))
        }
    };
    let current = Current {
        name: String::new(),
        requests,
        unit: unit.number(),
    };
    let named_below = 0;
    let shadow_mode = false;
    let quota_mode = false;
    let path = None;
    let counts = None;
    Ok(DescriptorLimit {
        kind,
        named_below,
        path,
        current,
        shadow_mode,
        quota_mode,
        counts,
    })
}
