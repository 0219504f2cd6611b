//! Counters for express-rate-limit, which compares the counts with limits itself.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use earrrl::{Cost, Decision, FixedWindow, Limiter, Quota, Rule};
use napi::Env;
use napi::bindgen_prelude::ObjectFinalize;
use napi_derive::napi;

use crate::figures::Figures;
use crate::input::{self, Key, StoreMemory, bytes, invalid};

/// The most units a second that a window counts: those that fit a state file.
const UNITS_PER_SECOND: f64 = 8e6;
/// The longest window in milliseconds: a year.
const LONGEST_WINDOW: f64 = 366.0 * 86_400_000.0;

/// Counters of fixed windows, under a quota that no count reaches.
#[napi(custom_finalize)]
pub struct Windows {
    limiter: Limiter<[u8]>,
    quota: u64,
    memory: StoreMemory,
}

impl ObjectFinalize for Windows {
    fn finalize(self, env: Env) -> napi::Result<()> {
        self.memory.free(&env)
    }
}

#[napi]
impl Windows {
    /// Builds the counters of windows of so many milliseconds; `directory` has a file for each length.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        window_ms: f64,
        capacity: f64,
        directory: Option<String>,
    ) -> napi::Result<Self> {
        if !(1.0..=LONGEST_WINDOW).contains(&window_ms) {
            let problem = format!("windowMs: {window_ms} is not from 1 to {LONGEST_WINDOW}");
            return Err(invalid(problem));
        }
        let window = Duration::from_millis(window_ms as u64);
        let quota = ((UNITS_PER_SECOND * window.as_secs_f64()) as u64).max(1);
        let rule = FixedWindow::new(Cost::from_units(quota), window).map_err(invalid)?;
        let rule = Rule::from(rule);
        let quota = Quota::of(rule.limit()).units;
        let capacity = input::capacity(Some(capacity))?;
        let mut builder = Limiter::builder(rule).capacity(capacity);
        if let Some(directory) = directory {
            let file = format!("fixed-{}ms", window.as_millis());
            builder = builder.state_file(Path::new(&directory).join(file));
        }
        let limiter = builder.build().map_err(invalid)?;
        Ok(Self { limiter, quota, memory: StoreMemory::reserve(&env, capacity, 1)? })
    }

    /// Counts a request. Writes the count, and the end of its window in milliseconds since the epoch.
    #[napi]
    pub fn increment(&self, key: Key<'_>, count: Figures<'_>) -> napi::Result<()> {
        let charged = self.limiter.charge(bytes(&key), Cost::ONE).map_err(invalid)?;
        self.write(&charged.decision(), count);
        Ok(())
    }

    /// Writes the count, and the end of its window in milliseconds since the epoch.
    #[napi]
    pub fn get(&self, key: Key<'_>, count: Figures<'_>) -> napi::Result<()> {
        let peeked = self.limiter.peek(bytes(&key), Cost::ONE).map_err(invalid)?;
        self.write(&peeked.decision(), count);
        Ok(())
    }

    /// Takes back one request.
    #[napi]
    pub fn decrement(&self, key: Key<'_>) {
        self.limiter.refund(bytes(&key), Cost::ONE, None);
    }

    /// Forgets the count.
    #[napi]
    pub fn reset(&self, key: Key<'_>) {
        self.limiter.reset(bytes(&key));
    }
}

impl Windows {
    fn write(&self, decision: &Decision, count: Figures<'_>) {
        let Some(count) = count.first_chunk_mut() else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let hits = self.quota.saturating_sub(decision.remaining);
        *count = [hits as f64, (now + decision.reset_after).as_secs_f64() * 1e3];
    }
}
