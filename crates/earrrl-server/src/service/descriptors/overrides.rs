//! The limits that requests bring, of which the least recently used are evicted.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use earrrl::EngineError;
use lru::LruCache;

use super::limit::{Current, DescriptorLimit, LimitKind};
use crate::config::envoy::EnvoyAlgorithm;
use crate::config::envoy::unit::Unit;
use crate::engine::Engine;

/// The most different limits that are in force at once.
const MAX_OVERRIDES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// The number of clients that one limit has room for.
const CLIENTS: usize = 10_000;

/// The limits in force that requests brought. They continue across reloads.
pub struct Overrides(Mutex<LruCache<OverrideKey, PlacedLimit, foldhash::fast::RandomState>>);

/// The algorithm, the number of requests and their unit.
type OverrideKey = (EnvoyAlgorithm, u32, Unit);

/// A limit and its place, a number below [`MAX_OVERRIDES`].
type PlacedLimit = (usize, Arc<DescriptorLimit>);

impl Default for Overrides {
    fn default() -> Self {
        Self(Mutex::new(LruCache::with_hasher(
            MAX_OVERRIDES,
            foldhash::fast::RandomState::default(),
        )))
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overrides")
    }
}

impl Overrides {
    /// Returns the limit of this key, which replaces the least recently used one if there are too many.
    ///
    /// # Errors
    /// Fails if the limit is invalid or the engine is unavailable.
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
            // An engine forgets no rule, so in memory the next limit takes the name and the table of the
            // evicted one. Servers that share a Redis must use one name for one limit.
            let name = match engine.waits() {
                true => format!("envoy-override-{requests}-{}", unit.name()),
                false => format!("envoy-override-{place}"),
            };
            LimitKind::Counted(engine.prepare(&name, &rule, CLIENTS)?, Arc::new(rule))
        }
    };
    let current = Current { name: String::new(), requests, unit: unit.number() };
    let (shadow_mode, quota_mode) = (false, false);
    Ok(DescriptorLimit { kind, current, shadow_mode, quota_mode, counts: None })
}
