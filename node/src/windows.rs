//! Counters for express-rate-limit, which compares the counts with limits itself.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use earrrl::algorithm::FixedWindow;
use earrrl::{Cost, Decision, Limiter, Quota, Rule};
use napi::Env;
use napi::bindgen_prelude::{Float64Array, Function, ObjectFinalize, Unknown};
use napi_derive::napi;

use crate::figures::Figures;
use crate::input::{self, Key, StoreMemory, bytes};
use crate::value::{self, Options, invalid, shown_number};

/// The most units a second that a window counts: those that fit a state file.
const UNITS_PER_SECOND: f64 = 8e6;
/// The longest window in milliseconds: a year.
const LONGEST_WINDOW: f64 = 366.0 * 86_400_000.0;

/// The options of a store.
#[napi]
pub struct StoreOptions {
    directory: Option<PathBuf>,
    capacity: usize,
    prefix: String,
}

#[napi]
impl StoreOptions {
    /// Reads the options.
    #[napi(constructor)]
    pub fn new(options: Unknown<'_>) -> napi::Result<Self> {
        let options = Options::of("options", options, &["path", "capacity", "prefix"])?;
        let directory = options.get("path", value::text)?.map(PathBuf::from);
        let capacity = input::capacity(&options)?;
        let prefix = options.get("prefix", value::text)?.unwrap_or_default();
        Ok(Self {
            directory,
            capacity,
            prefix,
        })
    }

    /// True if processes share the counts.
    #[napi(getter)]
    pub fn is_shared(&self) -> bool {
        self.directory.is_some()
    }

    /// The text before every key.
    #[napi(getter)]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// Counters of fixed windows, under a quota that no count reaches.
#[napi(custom_finalize)]
pub struct Windows {
    own: Rc<Own>,
    memory: StoreMemory,
}

/// The counters, and the array for their counts.
struct Own {
    limiter: Limiter<[u8]>,
    quota: u64,
    figures: Figures,
}

impl ObjectFinalize for Windows {
    fn finalize(self, env: Env) -> napi::Result<()> {
        self.memory.free(&env)
    }
}

#[napi]
impl Windows {
    /// Builds the counters of windows of so many milliseconds, which write counts into an array. The directory
    /// of the options has a file for each length of windows.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        window_ms: Unknown<'_>,
        options: &StoreOptions,
        figures: Float64Array,
    ) -> napi::Result<Self> {
        let window = window("windowMs", window_ms)?;
        let quota = ((UNITS_PER_SECOND * window.as_secs_f64()) as u64).max(1);
        let rule = FixedWindow::new(Cost::from_units(quota), window).map_err(invalid)?;
        let rule = Rule::from(rule);
        let quota = Quota::of(rule.limit()).units;
        let mut builder = Limiter::builder(rule).capacity(options.capacity);
        if let Some(directory) = &options.directory {
            let file = format!("fixed-{}ms", window.as_millis());
            builder = builder.state_file(Path::new(directory).join(file));
        }
        let limiter = builder.build().map_err(invalid)?;
        let own = Rc::new(Own {
            limiter,
            quota,
            figures: Figures::new(figures),
        });
        Ok(Self {
            own,
            memory: StoreMemory::reserve(&env, options.capacity, 1)?,
        })
    }

    /// Returns the function that counts a request of a key. It writes the count, and the end of its window in
    /// milliseconds since the epoch. A function finds the counters in much less time than a method does.
    #[napi]
    pub fn incrementer<'a>(&self, env: &'a Env) -> napi::Result<Function<'a, (), ()>> {
        let own = Rc::clone(&self.own);
        env.create_function_from_closure("increment", move |call| {
            let key: Key<'_> = call.get(0)?;
            let charged = own
                .limiter
                .charge(bytes(&key), Cost::ONE)
                .map_err(invalid)?;
            own.write(&charged.decision());
            Ok(())
        })
    }

    /// Writes the count, and the end of its window in milliseconds since the epoch.
    #[napi]
    pub fn get(&self, key: Key<'_>) -> napi::Result<()> {
        let peeked = self
            .own
            .limiter
            .peek(bytes(&key), Cost::ONE)
            .map_err(invalid)?;
        self.own.write(&peeked.decision());
        Ok(())
    }

    /// Takes back one request.
    #[napi]
    pub fn decrement(&self, key: Key<'_>) {
        self.own.limiter.refund(bytes(&key), Cost::ONE, None);
    }

    /// Forgets the count of a key.
    #[napi]
    pub fn reset(&self, key: Key<'_>) {
        self.own.limiter.reset(bytes(&key));
    }

    /// Forgets all counts.
    #[napi]
    pub fn clear(&self) {
        self.own.limiter.clear();
    }
}

impl Own {
    fn write(&self, decision: &Decision) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let hits = self.quota.saturating_sub(decision.remaining);
        self.figures.set([
            hits as f64,
            (now + decision.reset_after).as_secs_f64() * 1e3,
        ]);
    }
}

/// Returns the length of a window from a number of milliseconds.
fn window(name: &str, value: Unknown<'_>) -> napi::Result<Duration> {
    let millis = value::number(name, value)?;
    if !(1.0..=LONGEST_WINDOW).contains(&millis) || millis.fract() != 0.0 {
        let millis = shown_number(millis);
        return Err(invalid(format!(
            "{name}: {millis} is not a whole number from 1 to {LONGEST_WINDOW}"
        )));
    }
    Ok(Duration::from_millis(millis as u64))
}
