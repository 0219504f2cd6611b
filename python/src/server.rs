//! Counters for the PyPI package `limits` that a server keeps, for several hosts.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use earrrl::Cost;
use pyo3::exceptions::{PyConnectionError, PyNotImplementedError, PyRuntimeError};
use pyo3::prelude::*;

use crate::input;
use crate::resp::{Address, Answer, Connections};
use crate::storage::{Kind, QUOTA, from_now};

/// A store of counters in a server that takes the texts of rules (`--allow-inline-rules`).
#[pyclass(frozen, module = "earrrl.limits")]
pub(crate) struct ServerWindows {
    connections: Connections,
    /// The fixed windows that this process has used, in seconds.
    known: Mutex<BTreeSet<u64>>,
}

#[pymethods]
impl ServerWindows {
    #[new]
    fn new(
        host: Option<String>,
        socket: Option<std::path::PathBuf>,
        token: Option<String>,
    ) -> Self {
        let address = match socket {
            Some(path) => Address::Unix(path),
            None => Address::Tcp(host.unwrap_or_default()),
        };
        Self {
            connections: Connections::new(address, token),
            known: Mutex::default(),
        }
    }

    /// Adds to the count of the present window, and returns the count.
    fn incr(
        &self,
        py: Python<'_>,
        key: &str,
        window: u64,
        amount: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let amount = input::cost(Some(amount))?;
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(window);
        let answer = self.ask(py, "EARRRL.CHARGE", Kind::Fixed { window }, key, amount)?;
        count(&answer)
    }

    /// Returns the count of the present window and its end, in seconds since the epoch. Without a
    /// `window`, the key is looked up in all windows that this process has used.
    #[pyo3(signature = (key, window=None))]
    fn get(&self, py: Python<'_>, key: &str, window: Option<u64>) -> PyResult<(u64, f64)> {
        let known = || {
            self.known
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
        };
        for window in window.map_or_else(known, |window| BTreeSet::from([window])) {
            let answer = self.ask(py, "EARRRL.PEEK", Kind::Fixed { window }, key, Cost::ONE)?;
            let count = count(&answer)?;
            if count > 0 {
                return Ok((count, from_now(seconds(&answer, "reset_after")?)));
            }
        }
        Ok((0, from_now(Duration::ZERO)))
    }

    /// Counts a request if the weighted count of two windows, rounded down, stays within the limit.
    fn acquire(
        &self,
        py: Python<'_>,
        key: &str,
        limit: u64,
        window: u64,
        amount: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let amount = input::cost(Some(amount))?;
        let answer = self.ask(
            py,
            "EARRRL.CHECK",
            Kind::Sliding { limit, window },
            key,
            amount,
        )?;
        Ok(field(&answer, "allowed")? == "1")
    }

    /// Returns the weighted count as that of the present window, and none of the previous one: what
    /// the server reports. Its time is the wait until a further request is allowed.
    #[pyo3(signature = (key, window, limit=None))]
    fn sliding(
        &self,
        py: Python<'_>,
        key: &str,
        window: u64,
        limit: Option<u64>,
    ) -> PyResult<(u64, f64, u64, f64)> {
        let Some(limit) = limit else {
            return Ok((0, 0.0, 0, 0.0));
        };
        let answer = self.ask(
            py,
            "EARRRL.PEEK",
            Kind::Sliding { limit, window },
            key,
            Cost::ONE,
        )?;
        let rate: f64 = field(&answer, "rate")?.parse().map_err(unreadable)?;
        let name = if field(&answer, "allowed")? == "1" {
            "reset_after"
        } else {
            "retry_after"
        };
        let wait = seconds(&answer, name)?.min(Duration::from_secs(window));
        // A product of a quotient may lie just below the whole number that it was.
        let weighted = (rate * window as f64 + 1e-6) as u64;
        Ok((0, 0.0, weighted, wait.as_secs_f64()))
    }

    /// Raises `NotImplementedError`: a server forgets clients of its configured rules only.
    fn clear(&self, _key: &str, _window: Option<u64>) -> PyResult<()> {
        Err(PyNotImplementedError::new_err(
            "a server cannot clear the counts of limits",
        ))
    }

    /// Raises `NotImplementedError`; see [`clear`](Self::clear).
    fn clear_sliding(&self, key: &str, window: u64) -> PyResult<()> {
        self.clear(key, Some(window))
    }

    /// Raises `NotImplementedError`; see [`clear`](Self::clear).
    fn reset(&self) -> PyResult<()> {
        self.clear("", None)
    }

    /// Returns true if the server answers.
    fn check(&self, py: Python<'_>) -> bool {
        py.detach(|| self.connections.ask(&["PING"])).is_ok()
    }
}

impl ServerWindows {
    fn ask(
        &self,
        py: Python<'_>,
        command: &str,
        kind: Kind,
        key: &str,
        cost: Cost,
    ) -> PyResult<Answer> {
        let rule = kind.rule()?.to_string();
        let cost = cost.to_string();
        let command = [command, &rule, key, "COST", &cost];
        py.detach(|| self.connections.ask(&command))
            .map_err(|error| match error.kind() {
                io::ErrorKind::Other => PyRuntimeError::new_err(format!("the server: {error}")),
                _ => {
                    let server = &self.connections.address;
                    PyConnectionError::new_err(format!("the server at {server}: {error}"))
                }
            })
    }
}

/// Returns the count of a fixed window, of whose quota an answer says what is left.
fn count(answer: &Answer) -> PyResult<u64> {
    let remaining: u64 = field(answer, "remaining")?.parse().map_err(unreadable)?;
    Ok(QUOTA.saturating_sub(remaining))
}

fn seconds(answer: &Answer, name: &str) -> PyResult<Duration> {
    let seconds: f64 = field(answer, name)?.parse().map_err(unreadable)?;
    Duration::try_from_secs_f64(seconds).map_err(unreadable)
}

fn field<'a>(answer: &'a Answer, name: &str) -> PyResult<&'a str> {
    let value = answer.get(name).and_then(Option::as_deref);
    value.ok_or_else(|| PyConnectionError::new_err(format!("the server's answer has no {name}")))
}

fn unreadable(error: impl std::fmt::Display) -> PyErr {
    PyConnectionError::new_err(format!("the server's answer: {error}"))
}
