//! Counters for the stores of `lib/stores.cjs`, whose packages compare the counts with limits themselves.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use earrrl::algorithm::FixedWindow;
use earrrl::{Cost, Decision, Limiter, Rule};
use earrrl_bindings::{Clock, check_clock};
use napi::Env;
use napi::bindgen_prelude::{Float64Array, Function, ObjectFinalize, Unknown};
use napi_derive::napi;

use crate::clock::{self, TestClock, Timed};
use crate::figures::Figures;
use crate::input::{self, Key, StoreMemory, bytes};
use crate::value::{self, Options, failed, invalid, shown_number};

/// The quota of a window, which no count reaches: one that fits a state file.
const QUOTA: u64 = 500_000_000_000;
/// The longest window in milliseconds: a year.
const LONGEST_WINDOW: f64 = 366.0 * 86_400_000.0;

/// The options of a store.
#[napi]
pub struct StoreOptions {
    directory: Option<PathBuf>,
    capacity: usize,
    prefix: String,
    clock: Option<TestClock>,
}

#[napi]
impl StoreOptions {
    /// Reads the options.
    #[napi(constructor)]
    pub fn new(env: Env, options: Unknown<'_>) -> napi::Result<Self> {
        let known = ["path", "capacity", "prefix", "clock"];
        let options = Options::of("options", options, &known)?;
        let directory = options.get("path", value::text)?.map(PathBuf::from);
        let capacity = input::capacity(&options)?;
        let prefix = options.get("prefix", value::text)?.unwrap_or_default();
        let clock = clock::of(&env, &options)?;
        check_clock(clock.is_some(), directory.is_some()).map_err(failed)?;
        Ok(Self {
            directory,
            capacity,
            prefix,
            clock,
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

/// Counters of windows that begin with a client's first request, under a quota that no count reaches.
#[napi(custom_finalize)]
pub struct Windows {
    own: Rc<Own>,
    memory: StoreMemory,
}

/// The counters, and the array for their counts.
struct Own {
    limiter: Timed<Limiter<[u8], Clock>>,
    figures: Figures,
}

impl ObjectFinalize for Windows {
    fn finalize(self, env: Env) -> napi::Result<()> {
        self.memory.free(&env)
    }
}

#[napi]
impl Windows {
    /// Builds the counters of windows of so many milliseconds, which write counts into an array. `name` is the
    /// setting that has this length. The directory of the options has a file for each length of windows.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        name: String,
        length: Unknown<'_>,
        options: &StoreOptions,
        figures: Float64Array,
    ) -> napi::Result<Self> {
        let window = window(&name, length)?;
        let rule = FixedWindow::new(Cost::from_units(QUOTA), window).map_err(invalid)?;
        let rule = Rule::from(rule.starting_with_first());
        let mut builder = Limiter::builder(rule).capacity(options.capacity);
        if let Some(directory) = &options.directory {
            let file = format!("fixed-{}ms", window.as_millis());
            builder = builder.state_file(Path::new(directory).join(file));
        }
        let clock = options.clock.clone();
        let shared = clock.as_ref().map(TestClock::shared);
        let builder = builder.clock_of(|anchor| Clock::new(shared, anchor));
        let limiter = builder.build().map_err(invalid)?;
        let own = Rc::new(Own {
            limiter: Timed::new(limiter, clock),
            figures: Figures::new(figures),
        });
        Ok(Self {
            own,
            memory: StoreMemory::reserve(&env, options.capacity, 1)?,
        })
    }

    /// Returns the function that counts a request of a key. It writes the count, the end of its window in milliseconds
    /// since the epoch, and the milliseconds until then. A function finds the counters in much less time than a method does.
    #[napi]
    pub fn incrementer<'a>(&self, env: &'a Env) -> napi::Result<Function<'a, (), ()>> {
        let own = Rc::clone(&self.own);
        env.create_function_from_closure("increment", move |call| {
            let key: Key<'_> = call.get(0)?;
            let limiter = own.limiter.now(clock::date(call.env))?;
            let charged = limiter.charge(bytes(&key), Cost::ONE);
            own.write(&charged.map_err(invalid)?.decision());
            Ok(())
        })
    }

    /// Writes the count, the end of its window in milliseconds since the epoch, and the milliseconds until then.
    #[napi]
    pub fn get(&self, env: Env, key: Key<'_>) -> napi::Result<()> {
        let limiter = self.own.limiter.now(clock::date(&env))?;
        let peeked = limiter.peek(bytes(&key), Cost::ONE).map_err(invalid)?;
        self.own.write(&peeked.decision());
        Ok(())
    }

    /// Takes back one request.
    #[napi]
    pub fn decrement(&self, env: Env, key: Key<'_>) -> napi::Result<()> {
        let limiter = self.own.limiter.now(clock::date(&env))?;
        limiter.refund(bytes(&key), Cost::ONE, None);
        Ok(())
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
        let hits = QUOTA.saturating_sub(decision.remaining);
        self.figures.set([
            hits as f64,
            self.limiter.end_of(decision.reset_after).as_secs_f64() * 1e3,
            decision.reset_after.as_secs_f64() * 1e3,
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
