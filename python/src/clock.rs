//! The clocks of tests of applications: one that they move, and `time.time`, which their libraries move.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Clock as _, Nanos};
use earrrl_bindings::start_of_day;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::input::wrong_type;

/// A clock of a test.
pub(crate) type TestClock = earrrl_bindings::TestClock<()>;
/// A value that decides by a clock, which may be a test's.
pub(crate) type Timed<T> = earrrl_bindings::Timed<T, ()>;

/// A clock that moves only when it is moved, for the tests of an application.
///
/// >>> from earrrl import Limiter, ManualClock
/// >>> clock = ManualClock()
/// >>> limiter = Limiter("5/minute", clock=clock)
/// >>> [bool(limiter.check("alice")) for _ in range(6)]
/// [True, True, True, True, True, False]
/// >>> clock.advance(60)
/// >>> bool(limiter.check("alice"))
/// True
#[pyclass(frozen, module = "earrrl")]
pub(crate) struct ManualClock(Arc<earrrl::ManualClock>);

#[pymethods]
impl ManualClock {
    /// Begins at ``start``, in seconds since the epoch; at the beginning of a day unless it is given, so that windows
    /// of up to a day begin then.
    #[new]
    #[pyo3(signature = (start=None))]
    fn new(start: Option<f64>) -> PyResult<Self> {
        let start = start.map_or_else(|| Ok(start_of_day()), |start| duration("start", start))?;
        let clock = earrrl::ManualClock::new(Nanos::ZERO + start);
        Ok(Self(Arc::new(clock)))
    }

    /// Moves the clock forward by ``seconds``.
    fn advance(&self, seconds: f64) -> PyResult<()> {
        self.0.advance(duration("seconds", seconds)?);
        Ok(())
    }

    /// Returns the clock's time in seconds since the epoch, as ``time.time`` does.
    fn time(&self) -> f64 {
        self.0.now().since(Nanos::ZERO).as_secs_f64()
    }
}

/// Returns the clock of a test, if there is one: a `ManualClock`, or the text `time.time`.
///
/// # Errors
/// Returns a `ValueError` for another text, a `TypeError` for another value, and the errors of [`time`].
pub(crate) fn of(clock: Option<&Bound<'_, PyAny>>) -> PyResult<Option<TestClock>> {
    let Some(clock) = clock else {
        return Ok(None);
    };
    if let Ok(manual) = clock.cast::<ManualClock>() {
        return Ok(Some(TestClock::moved(Arc::clone(&manual.get().0))));
    }
    match clock.cast::<PyString>() {
        Ok(name) if name == "time.time" => Ok(Some(TestClock::following((), time(&())?))),
        Ok(name) => {
            let problem = format!("clock: {name} is no clock; expected time.time or a ManualClock");
            Err(PyValueError::new_err(problem))
        }
        Err(_) => Err(wrong_type("clock", clock, "a ManualClock or \"time.time\"")),
    }
}

/// Returns the time since the epoch that `time.time` returns. The function is looked up each time, since a test may
/// replace it.
///
/// # Errors
/// Returns what the function raises, and an error for a time before the epoch.
pub(crate) fn time(_: &()) -> PyResult<Duration> {
    Python::attach(|py| {
        let seconds = py.import("time")?.call_method0("time")?.extract()?;
        duration("time.time", seconds)
    })
}

fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        let expected = "a number of seconds from 0";
        PyValueError::new_err(format!("{name}: {seconds:?} is not {expected}"))
    })
}
