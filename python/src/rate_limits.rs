//! The rules of a service, and the treatment of its requests: what both middlewares ask.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use earrrl_bindings::{LimitsOptions, RequestHead, Target, enter, leave};
use earrrl_tower::{Judged, Passed, RequestAttribute, Settlement};
use http::{HeaderMap, Response};
use pyo3::exceptions::{PyRuntimeWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use pyo3::{PyTraverseError, PyVisit};

use crate::clock::{self, TestClock, Timed};
use crate::decision::Decision;
use crate::error::raised;
use crate::input::{self, key_bytes};
use crate::request_rule::Rule;

/// The rules of a service, over one engine: the base of Python's class ``RateLimits``, which adds limits on routes.
#[pyclass(frozen, subclass, module = "earrrl")]
pub(crate) struct RateLimits {
    limits: Timed<earrrl_bindings::RateLimits>,
    rules: Vec<Py<Rule>>,
    has_functions: bool,
    /// True if a cost depends on the response.
    reads_response: bool,
}

#[pymethods]
impl RateLimits {
    #[new]
    #[pyo3(signature = (
        rules=Vec::new(), path=None, capacity=100_000, *, trusted_proxies=None, hops=0, source="x-forwarded-for",
        ipv4_prefix=32, ipv6_prefix=64, status=429, headers_on_allowed=true, x_rate_limit=false, always_verdict=false,
        clock=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        rules: Vec<Py<Rule>>,
        path: Option<PathBuf>,
        capacity: usize,
        trusted_proxies: Option<&Bound<'_, PyAny>>,
        hops: usize,
        source: &str,
        ipv4_prefix: u32,
        ipv6_prefix: u32,
        status: u16,
        headers_on_allowed: bool,
        x_rate_limit: bool,
        always_verdict: bool,
        clock: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let proxies = trusted_proxies.map_or(Ok(Vec::new()), |networks| {
            let expected = "a list of networks such as [\"10.0.0.0/8\"]";
            let texts = networks.extract::<Vec<String>>();
            texts.map_err(|_| input::wrong_type("trusted_proxies", networks, expected))
        })?;
        let clock = clock::of(clock)?;
        let options = LimitsOptions {
            path,
            capacity,
            trusted_proxies: proxies,
            hops,
            source: source.to_owned(),
            ipv4_prefix,
            ipv6_prefix,
            status,
            headers_on_allowed,
            x_rate_limit,
            always_verdict,
            clock: clock.as_ref().map(TestClock::shared),
        };
        let own: Vec<_> = rules.iter().map(|rule| &rule.get().rule).collect();
        // Allocating large tables or files takes a while.
        let limits = py.detach(|| earrrl_bindings::RateLimits::new(own, options));
        let limits = limits.map_err(raised)?;
        let category = py.get_type::<PyRuntimeWarning>();
        for warning in limits.warnings() {
            PyErr::warn(py, &category, &CString::new(warning)?, 1)?;
        }
        let has_functions = rules.iter().any(|rule| rule.get().has_functions());
        let reads_response = rules.iter().any(|rule| rule.get().rule.has_cost_after);
        Ok(Self {
            limits: Timed::new(limits, clock),
            rules,
            has_functions,
            reads_response,
        })
    }

    /// Judges a request: ``path`` has the bytes of the decoded path, ``headers`` are pairs of bytes, ``peer`` is the
    /// connection's address, ``request`` is what the functions of the rules get, and ``route`` is what the framework has
    /// found; the path begins with a prefix of so many bytes, with which a proxy or a mounting application has extended
    /// it. Returns a ``Passing`` or a ``Refusal``.
    #[pyo3(signature = (method, path, headers, peer, request, route=None, prefix=0))]
    #[expect(
        clippy::too_many_arguments,
        reason = "an object would have to be made for each request"
    )]
    fn judge<'py>(
        slf: &Bound<'py, Self>,
        method: &str,
        path: &[u8],
        headers: &Bound<'py, PyAny>,
        peer: Option<&str>,
        request: &Bound<'py, PyAny>,
        route: Option<String>,
        prefix: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        let mut head = RequestHead {
            method,
            target: Target::Decoded(path),
            below: path
                .get(prefix..)
                .map(Target::Decoded)
                .filter(|_| prefix > 0),
            peer,
            route,
            headers: this.read_headers(headers)?,
            answers: Vec::new(),
        };
        if this.has_functions {
            let answers = this.rules.iter().map(|rule| rule.get().ask(request));
            head.answers = answers.collect::<PyResult<_>>()?;
        }
        match this.limits.now(clock::time)?.judge(head).map_err(raised)? {
            Judged::Pass(passed) => {
                let passing = Passing {
                    limits: slf.clone().unbind(),
                    delay: passed.delay(),
                    passed: Mutex::new(Some(passed)),
                };
                Ok(Bound::new(py, passing)?.into_any())
            }
            Judged::Refuse(response) => Ok(Bound::new(py, Refusal { response })?.into_any()),
            _ => Err(PyValueError::new_err("an unknown treatment of the request")),
        }
    }

    /// The names of the headers that the rules read, in lower case.
    #[getter]
    fn headers(&self) -> Vec<&str> {
        self.limits
            .headers()
            .iter()
            .map(|name| name.as_str())
            .collect()
    }

    /// The names of the rules and plans.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.limits.names()
    }

    /// True if a rule reads the path.
    #[getter]
    fn reads_target(&self) -> bool {
        self.limits.reads(&RequestAttribute::Path)
    }

    /// True if a rule reads the route of the framework.
    #[getter]
    fn reads_route(&self) -> bool {
        self.limits.reads(&RequestAttribute::Route)
    }

    /// Changes the limit of a rule or plan while requests go on. Clients keep their history unless
    /// the algorithm changes. Its action and greatest cost stay.
    fn change(&self, py: Python<'_>, name: &str, limit: &str) -> PyResult<()> {
        py.detach(|| self.limits.change(name, limit))
            .map_err(raised)
    }

    /// Forgets a client of a rule or plan.
    fn reset(&self, name: &str, key: &Bound<'_, PyAny>) -> PyResult<()> {
        self.limits.reset(name, &key_bytes(key)?).map_err(raised)
    }

    /// Takes back one request of a client under a rule or plan.
    #[pyo3(signature = (name, key, cost=None))]
    fn refund(
        &self,
        name: &str,
        key: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let key = key_bytes(key)?;
        let cost = input::cost(cost)?;
        let limits = self.limits.now(clock::time)?;
        limits.refund(name, &key, cost).map_err(raised)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.rules.iter().try_for_each(|rule| visit.call(rule))
    }
}

impl RateLimits {
    /// Returns the headers that the rules read.
    fn read_headers(&self, pairs: &Bound<'_, PyAny>) -> PyResult<HeaderMap> {
        let mut headers = HeaderMap::new();
        for pair in pairs.cast::<PyList>()?.iter() {
            let (name, value) = header(&pair)?;
            self.limits
                .add_header(&mut headers, name.as_bytes(), value.as_bytes());
        }
        Ok(headers)
    }
}

/// A pair of a header's name and value.
type Header<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Returns the name and the value of a header: a tuple, or another sequence of two, such as the lists of some servers.
fn header<'py>(pair: &Bound<'py, PyAny>) -> PyResult<Header<'py>> {
    if let Ok(tuple) = pair.extract() {
        return Ok(tuple);
    }
    let [name, value]: [Bound<'py, PyBytes>; 2] = pair.extract()?;
    Ok((name, value))
}

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
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(passed) = passed.as_mut() else {
            return (None, None);
        };
        let (verdict, settlement) = enter(passed);
        let visit = verdict.and_then(|verdict| self.limits.get().limits.visit(verdict));
        let decision = visit.map(|visit| Decision::of_rule(visit.decision, visit.name, visit.rule));
        (decision, settlement.map(SettlementHandle))
    }

    /// True if a cost depends on the response. Otherwise ``leave`` needs none of its headers.
    #[getter]
    fn reads_response(&self) -> bool {
        self.limits.get().reads_response
    }

    /// Charges the costs that depend on the response, and returns the headers to add to it.
    fn leave<'py>(
        &self,
        py: Python<'py>,
        status: u16,
        headers: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Header<'py>>> {
        let mut costs = Vec::new();
        if self.reads_response() {
            let rules = self.limits.get().rules.iter();
            let cost = |rule: &Py<Rule>| rule.get().cost_after(status, headers);
            costs = rules.map(cost).collect::<PyResult<_>>()?;
        }
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let added = passed.take().map(|passed| leave(passed, costs));
        Ok(pairs(py, &added.unwrap_or_default()))
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
    fn headers<'py>(&self, py: Python<'py>) -> Vec<Header<'py>> {
        pairs(py, self.response.headers())
    }

    /// The body.
    #[getter]
    fn body(&self) -> &[u8] {
        self.response.body()
    }
}

fn pairs<'py>(py: Python<'py>, headers: &HeaderMap) -> Vec<Header<'py>> {
    let pair = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        let name = PyBytes::new(py, name.as_str().as_bytes());
        (name, PyBytes::new(py, value.as_bytes()))
    };
    headers.iter().map(pair).collect()
}
