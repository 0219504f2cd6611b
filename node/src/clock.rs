//! The clocks of tests of applications: one that they move, and `Date.now`, which their libraries replace.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use earrrl::{Clock as _, Nanos};
use earrrl_bindings::start_of_day;
use napi::bindgen_prelude::{ClassInstance, FromNapiValue as _, Function, FunctionRef, Unknown};
use napi::{Env, ValueType};
use napi_derive::napi;

use crate::value::{self, Options, invalid, optional, shown_number, wrong};

/// A function of `lib/clock.cjs` that returns what `Date.now` returns.
type Date = Rc<FunctionRef<(), f64>>;
/// A clock of a test.
pub(crate) type TestClock = earrrl_bindings::TestClock<Date>;
/// A value that decides by a clock, which may be a test's.
pub(crate) type Timed<T> = earrrl_bindings::Timed<T, Date>;

/// A clock that moves only when it is moved.
#[napi]
pub struct ManualClock(Arc<earrrl::ManualClock>);

#[napi]
impl ManualClock {
    /// Begins at `start`, in milliseconds since the epoch; at the beginning of a day unless it is given.
    #[napi(constructor)]
    pub fn new(start: Unknown<'_>) -> napi::Result<Self> {
        let start = optional("start", start, duration)?;
        let start = Nanos::ZERO + start.unwrap_or_else(start_of_day);
        Ok(Self(Arc::new(earrrl::ManualClock::new(start))))
    }

    /// Moves the clock forward by milliseconds.
    #[napi]
    pub fn advance(&self, millis: Unknown<'_>) -> napi::Result<()> {
        self.0.advance(duration("milliseconds", millis)?);
        Ok(())
    }

    /// Returns the clock's time in milliseconds since the epoch, as `Date.now` does.
    #[napi]
    pub fn now(&self) -> f64 {
        self.0.now().since(Nanos::ZERO).as_secs_f64() * 1e3
    }
}

/// Returns the clock of a test that the option `clock` has, if there is one: a `ManualClock`, or the function in whose
/// place `lib/clock.cjs` has the text `Date.now`.
///
/// # Errors
/// Returns an error for another value, and the errors of [`date`].
pub(crate) fn of(env: &Env, options: &Options<'_>) -> napi::Result<Option<TestClock>> {
    options.get("clock", |name, clock| {
        if let Ok(manual) = ClassInstance::<ManualClock>::from_unknown(clock) {
            return Ok(TestClock::moved(Arc::clone(&manual.0)));
        }
        if clock.get_type()? != ValueType::Function {
            return Err(wrong(name, clock, "a ManualClock or \"Date.now\""));
        }
        let function = Rc::new(Function::<(), f64>::from_unknown(clock)?.create_ref()?);
        let now = date(env)(&function)?;
        Ok(TestClock::following(function, now))
    })
}

/// Returns a function that calls `Date.now` and returns its time since the epoch.
///
/// # Errors
/// The function returns what `Date.now` throws, and an error for a time before the epoch.
pub(crate) fn date(env: &Env) -> impl FnOnce(&Date) -> napi::Result<Duration> {
    move |function| {
        let millis = function.borrow_back(env)?.call(())?;
        since_epoch("Date.now", millis)
    }
}

fn duration(name: &str, value: Unknown<'_>) -> napi::Result<Duration> {
    since_epoch(name, value::number(name, value)?)
}

fn since_epoch(name: &str, millis: f64) -> napi::Result<Duration> {
    Duration::try_from_secs_f64(millis / 1e3).map_err(|_| {
        let millis = shown_number(millis);
        invalid(format!(
            "{name}: {millis} is not a number of milliseconds from 0"
        ))
    })
}
