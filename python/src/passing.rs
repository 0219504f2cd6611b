//! The treatment of one request, for the middleware.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use earrrl_tower::{Passed, Settlement, Verdict};
use http::{Extensions, Response};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::decision::Decision;
use crate::input;
use crate::rate_limits::RateLimits;
use crate::request_rule::CostsAfter;

/// A pair of a header's name and value.
type Header<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// A request that is passed on.
#[pyclass(frozen, module = "earrrl")]
pub(crate) struct Passing {
    limits: Py<RateLimits>,
    delay: Duration,
    /// Taken when the response is there.
    passed: Mutex<Option<Passed>>,
}

#[pymethods]
impl Passing {
    /// The seconds for which the request must be held back.
    #[getter]
    fn delay(&self) -> f64 {
        self.delay.as_secs_f64()
    }

    /// Returns the decision, if the request is over a limit or every request gets one, and the
    /// handle of a rule that is ``settled``. To be called just before the request is passed on.
    fn enter(&self) -> (Option<Decision>, Option<SettlementHandle>) {
        let mut extensions = Extensions::new();
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(passed) = passed.as_mut() {
            passed.enter(&mut extensions);
        }
        drop(passed);
        let verdict = extensions.remove::<Verdict>();
        let settlement = extensions.remove::<Settlement>().map(SettlementHandle);
        (
            verdict.and_then(|verdict| self.limits.get().decision(verdict)),
            settlement,
        )
    }

    /// Charges the costs that depend on the response, and returns the headers to add to it.
    fn leave<'py>(
        &self,
        py: Python<'py>,
        status: u16,
        headers: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Header<'py>>> {
        let rules = &self.limits.get().rules;
        let costs = rules
            .iter()
            .map(|rule| rule.get().cost_after(status, headers));
        let costs = costs.collect::<PyResult<Vec<_>>>()?;
        let passed = self
            .passed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let mut parts = Response::new(()).into_parts().0;
        if costs.iter().any(Option::is_some) {
            let costs = costs.into_iter().map(Option::unwrap_or_default).collect();
            parts.extensions.insert(CostsAfter(costs));
        }
        if let Some(passed) = passed {
            passed.leave(&mut parts);
        }
        Ok(pairs(py, &parts.headers).collect())
    }
}

impl Passing {
    pub(crate) fn new(limits: Py<RateLimits>, passed: Passed) -> Self {
        Self {
            limits,
            delay: passed.delay(),
            passed: Mutex::new(Some(passed)),
        }
    }
}

/// Charges costs that are known only while a request is served, or afterwards.
#[pyclass(frozen, name = "Settlement", module = "earrrl")]
pub(crate) struct SettlementHandle(Settlement);

#[pymethods]
impl SettlementHandle {
    /// Charges ``cost``, at most the rule's ``max_cost``.
    fn charge(&self, cost: &Bound<'_, PyAny>) -> PyResult<()> {
        // An engine in memory has charged the cost when the future is made.
        drop(self.0.charge(input::cost(Some(cost))?));
        Ok(())
    }
}

/// A request that is not passed on, with its response.
#[pyclass(frozen, module = "earrrl")]
pub(crate) struct Refusal {
    response: Response<Bytes>,
}

#[pymethods]
impl Refusal {
    /// The status.
    #[getter]
    fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The headers as pairs of bytes.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, pairs(py, self.response.headers()).collect::<Vec<_>>())
    }

    /// The body.
    #[getter]
    fn body(&self) -> &[u8] {
        self.response.body()
    }
}

impl Refusal {
    pub(crate) fn new(response: Response<Bytes>) -> Self {
        Self { response }
    }
}

fn pairs<'py>(py: Python<'py>, headers: &http::HeaderMap) -> impl Iterator<Item = Header<'py>> {
    headers.iter().map(move |(name, value)| {
        (
            PyBytes::new(py, name.as_str().as_bytes()),
            PyBytes::new(py, value.as_bytes()),
        )
    })
}
