//! Counters for the PyPI package `limits`: fixed windows and two-window sliding counters.
//!
//! `limits` compares counts with limits itself, so a fixed window is a counter here: a charge under a
//! quota that no count reaches. The states of a sliding counter do not depend on its quota, so all
//! limits of one window share a store.

use std::collections::HashMap;
use std::fs::DirEntry;
use std::io::ErrorKind;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use earrrl::algorithm::{FixedWindow, SlidingCounter, State};
use earrrl::{Cost, Decision, Nanos, Rule};
use earrrl_bindings::{Clock, check_clock, since_epoch};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::clock::{self, Timed};
use crate::error::{invalid, not_built, raised};
use crate::input;

type Limiter = earrrl::Limiter<[u8], Clock>;

/// The quota of a fixed window, which no count reaches: one that fits a state file.
pub(crate) const QUOTA: u64 = 500_000_000_000;
/// The longest window, in seconds: ten years of `limits`.
const LONGEST_WINDOW: u64 = 10 * 366 * 86_400;
/// The greatest number of different limits in one process.
const MOST_LIMITS: usize = 1000;
/// The share of a unit by which a quota is greater than the limit, in billionths: `limits` rounds
/// the weighted count down before it compares.
const NEARLY_ONE: u128 = 999_999_999;

/// A store of counters, in this process or in the files of a directory.
#[pyclass(frozen, module = "earrrl.limits")]
pub(crate) struct Windows {
    directory: Option<PathBuf>,
    capacity: usize,
    known: Timed<RwLock<HashMap<Kind, Arc<Limiter>>>>,
}

/// A kind of counters, each with a limiter of its own. Windows are in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Fixed { window: u64 },
    Sliding { limit: u64, window: u64 },
}

#[pymethods]
impl Windows {
    #[new]
    #[pyo3(signature = (directory, capacity, clock=None))]
    fn new(
        directory: Option<PathBuf>,
        capacity: usize,
        clock: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        check_clock(clock.is_some(), directory.is_some()).map_err(raised)?;
        // The files are made by the first requests. A directory that cannot be had is an error at the start.
        if let Some(directory) = &directory
            && let Err(error) = make(directory)
            && error.kind() != ErrorKind::AlreadyExists
        {
            let problem = format!("{}: {error}", directory.display());
            return Err(PyOSError::new_err(problem));
        }
        Ok(Self {
            directory,
            capacity,
            known: Timed::new(RwLock::default(), clock::of(clock)?),
        })
    }

    /// Adds to the count of the present window, and returns the count, rounded up.
    fn incr(&self, key: &str, window: u64, amount: &Bound<'_, PyAny>) -> PyResult<u64> {
        let limiter = self.limiter(Kind::Fixed { window })?;
        let amount = input::cost(Some(amount))?;
        let charged = limiter.charge(key.as_bytes(), amount).map_err(invalid)?;
        Ok(count(&charged.decision()))
    }

    /// Returns the count of the present window and its end, in seconds since the epoch. Without a
    /// `window`, the key is looked up in all windows that this process knows.
    #[pyo3(signature = (key, window=None))]
    fn get(&self, key: &str, window: Option<u64>) -> PyResult<(u64, f64)> {
        for limiter in self.fixed(window)? {
            let peeked = limiter
                .peek(key.as_bytes(), Cost::ONE)
                .map_err(invalid)?
                .decision();
            let count = count(&peeked);
            if count > 0 {
                return Ok((count, self.known.end_of(peeked.reset_after).as_secs_f64()));
            }
        }
        Ok((0, self.known.end_of(Duration::ZERO).as_secs_f64()))
    }

    /// Forgets the count of a key; see [`get`](Self::get).
    #[pyo3(signature = (key, window=None))]
    fn clear(&self, key: &str, window: Option<u64>) -> PyResult<()> {
        self.fixed(window)?
            .iter()
            .for_each(|limiter| limiter.reset(key.as_bytes()));
        Ok(())
    }

    /// Counts a request if the weighted count of two windows, rounded down, stays within the limit.
    fn acquire(
        &self,
        key: &str,
        limit: u64,
        window: u64,
        amount: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let limiter = self.limiter(Kind::Sliding { limit, window })?;
        let checked = limiter.check_cost(key.as_bytes(), input::cost(Some(amount))?);
        Ok(checked.map_err(invalid)?.is_allowed())
    }

    /// Returns the previous window's count, the seconds for which it counts, the present window's
    /// count, and the seconds for which that will count. The `limit` makes no difference.
    #[pyo3(signature = (key, window, _limit=None))]
    fn sliding(
        &self,
        key: &str,
        window: u64,
        _limit: Option<u64>,
    ) -> PyResult<(u64, f64, u64, f64)> {
        let mut left = Duration::ZERO;
        for limiter in self.sliding_limiters(window)? {
            let now = limiter
                .peek(key.as_bytes(), Cost::ZERO)
                .map_err(invalid)?
                .decided_at();
            let counts = counts(&limiter, key, now, window);
            left = counts.2;
            if counts.0 + counts.1 > 0 {
                let previous_left = if counts.0 > 0 {
                    left.as_secs_f64()
                } else {
                    0.0
                };
                let all = left + Duration::from_secs(window);
                return Ok((counts.0, previous_left, counts.1, all.as_secs_f64()));
            }
        }
        Ok((
            0,
            0.0,
            0,
            (left + Duration::from_secs(window)).as_secs_f64(),
        ))
    }

    /// Forgets the counts of a key under a sliding counter.
    fn clear_sliding(&self, key: &str, window: u64) -> PyResult<()> {
        self.sliding_limiters(window)?
            .iter()
            .for_each(|limiter| limiter.reset(key.as_bytes()));
        Ok(())
    }

    /// Returns true: there is nothing that could be unreachable.
    fn check(&self) -> bool {
        true
    }

    /// Forgets all counts, those of other processes in the files of the directory among them. Returns their number.
    fn reset(&self, py: Python<'_>) -> PyResult<usize> {
        if let Some(directory) = &self.directory {
            for kind in kinds_in(directory)? {
                self.limiter(kind)?;
            }
        }
        let known = mem::take(&mut *self.known.write().unwrap_or_else(PoisonError::into_inner));
        Ok(py.detach(|| known.values().map(|limiter| limiter.clear()).sum()))
    }
}

impl Windows {
    /// Returns the limiter of a kind, which is built for its first request.
    fn limiter(&self, kind: Kind) -> PyResult<Arc<Limiter>> {
        let known = self.known.now(clock::time)?;
        let read = known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = read.get(&kind) {
            return Ok(Arc::clone(known));
        }
        drop(read);
        let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_LIMITS {
            let problem = format!("{MOST_LIMITS} different limits are in use, which is the most");
            return Err(PyValueError::new_err(problem));
        }
        let mut builder = earrrl::Limiter::builder(kind.rule()?).capacity(self.capacity);
        if let Some(directory) = &self.directory {
            builder = builder.state_file(directory.join(kind.file()));
        }
        let clock = self.known.clock();
        let builder = builder.clock_of(|anchor| Clock::new(clock, anchor));
        let limiter = Arc::new(builder.build().map_err(not_built)?);
        Ok(Arc::clone(known.entry(kind).or_insert(limiter)))
    }

    /// Returns the limiter of a fixed window, or those of all known ones.
    fn fixed(&self, window: Option<u64>) -> PyResult<Vec<Arc<Limiter>>> {
        match window {
            Some(window) => Ok(vec![self.limiter(Kind::Fixed { window })?]),
            None => self.matching(|kind| matches!(kind, Kind::Fixed { .. })),
        }
    }

    /// Returns the known limiters of sliding counters with this window; at least one if they are in
    /// a file, which they share.
    fn sliding_limiters(&self, window: u64) -> PyResult<Vec<Arc<Limiter>>> {
        let known = self.matching(
            |kind| matches!(kind, Kind::Sliding { window: known, .. } if *known == window),
        )?;
        match &self.directory {
            Some(_) if known.is_empty() => {
                Ok(vec![self.limiter(Kind::Sliding { limit: 1, window })?])
            }
            Some(_) => Ok(known.into_iter().take(1).collect()),
            None => Ok(known),
        }
    }

    fn matching(&self, matches: impl Fn(&Kind) -> bool) -> PyResult<Vec<Arc<Limiter>>> {
        let known = self.known.now(clock::time)?;
        let known = known.read().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().filter(|(kind, _)| matches(kind));
        Ok(found.map(|(_, found)| Arc::clone(found)).collect())
    }
}

impl Kind {
    /// Returns the rule of these counters.
    ///
    /// # Errors
    /// Returns a `ValueError` for a window that is too short or too long.
    pub(crate) fn rule(self) -> PyResult<Rule> {
        let (Self::Fixed { window } | Self::Sliding { window, .. }) = self;
        if !(1..=LONGEST_WINDOW).contains(&window) {
            let problem = format!("expiry: {window} is not from 1 to {LONGEST_WINDOW} seconds");
            return Err(PyValueError::new_err(problem));
        }
        let duration = Duration::from_secs(window);
        let rule = match self {
            Self::Fixed { .. } => {
                let limit = FixedWindow::new(Cost::from_units(QUOTA), duration);
                limit.map(|limit| Rule::from(limit.starting_with_first()))
            }
            Self::Sliding { limit, .. } => {
                let quota = Cost::from_units(limit) + Cost::from_billionths(NEARLY_ONE);
                SlidingCounter::new(quota, duration).map(Rule::from)
            }
        };
        rule.map_err(invalid)
    }

    /// Returns the name of the kind's file. Sliding counters of one window share one.
    fn file(self) -> String {
        match self {
            Self::Fixed { window } => format!("fixed-{window}s"),
            Self::Sliding { window, .. } => format!("sliding-{window}s"),
        }
    }

    /// Returns the kind of the counters in a file, whose name has the number of its generation and an ending, too, or
    /// in the directory of such a file.
    fn of_file(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once('-')?;
        let window = rest.split('.').next()?.strip_suffix('s')?.parse().ok()?;
        match kind {
            "fixed" => Some(Self::Fixed { window }),
            "sliding" => Some(Self::Sliding { limit: 1, window }),
            _ => None,
        }
    }
}

/// Makes a directory, which is this user's alone.
fn make(directory: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// Returns the kinds of the counters in the files of a directory, which may not exist yet.
fn kinds_in(directory: &Path) -> PyResult<Vec<Kind>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let kind = |entry: DirEntry| entry.file_name().to_str().and_then(Kind::of_file);
    Ok(entries
        .filter_map(|entry| entry.map(kind).transpose())
        .collect::<Result<_, _>>()?)
}

/// Returns the count of a fixed window after a decision.
fn count(decision: &Decision) -> u64 {
    QUOTA.saturating_sub(decision.remaining)
}

/// Returns the counts of the previous and the present window of a sliding counter, and the time that
/// is left of the present one.
fn counts(limiter: &Limiter, key: &str, now: Nanos, window: u64) -> (u64, u64, Duration) {
    let nanos = window.saturating_mul(1_000_000_000);
    let present = now.get() / nanos;
    let passed = now.get() % nanos;
    let units = |count: u128| u64::try_from(count / Cost::ONE.billionths()).unwrap_or(u64::MAX);
    let (previous, current) = match limiter.state(key.as_bytes()) {
        Some(State::SlidingCounter(counts)) => match present.saturating_sub(counts.window) {
            0 => (units(counts.previous), units(counts.current)),
            1 => (units(counts.current), 0),
            _ => (0, 0),
        },
        _ => (0, 0),
    };
    (previous, current, Duration::from_nanos(nanos - passed))
}

/// Returns an instant in seconds since the epoch of the system's clock.
pub(crate) fn from_now(wait: Duration) -> f64 {
    (since_epoch() + wait).as_secs_f64()
}
