//! The answers to requests as Python objects.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Rule, Wait};
use earrrl_bindings::{limit_header, policy_header};
use earrrl_tower::headers::Available;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A rule and the name that headers show for it.
pub(crate) struct NamedRule {
    pub(crate) name: String,
    pub(crate) rule: Rule,
}

/// The answer to a request.
#[pyclass(frozen, module = "earrrl")]
pub(crate) struct Decision {
    decision: earrrl::Decision,
    /// The rule that determined the figures.
    named: Arc<NamedRule>,
    /// The quota that is available, for headers.
    available: Option<Available>,
}

impl Decision {
    /// Returns the answer of a rule. `peek` is called if the decision lacks the figures that headers need.
    #[inline]
    pub(crate) fn new(
        decision: earrrl::Decision,
        named: &Arc<NamedRule>,
        peek: impl FnOnce() -> Option<earrrl::Decision>,
    ) -> Self {
        let place = decision.rule;
        let available = Available::from_decision(&named.rule, &decision, place)
            .or_else(|| Some(Available::from_peek(&named.rule, &peek()?)));
        Self {
            decision,
            named: Arc::clone(named),
            available,
        }
    }

    /// Returns the answer of a rule that is known by its name.
    pub(crate) fn of_rule(decision: earrrl::Decision, name: String, rule: Rule) -> Self {
        let named = Arc::new(NamedRule { name, rule });
        Self::new(decision, &named, || None)
    }
}

#[pymethods]
impl Decision {
    /// True if the request is answered as allowed: every outcome except ``"deny"``.
    #[getter]
    fn allowed(&self) -> bool {
        self.decision.allowed
    }

    /// ``"allow"``, ``"observe"``, ``"quarantine"``, ``"delay"``, ``"shadow-ban"`` or ``"deny"``.
    #[getter]
    fn outcome(&self) -> &'static str {
        self.decision.outcome.name()
    }

    /// The name of the rule that determined the figures.
    #[getter]
    fn rule(&self) -> &str {
        &self.named.name
    }

    /// The client's measured rate in cost units per second, or ``None`` if the algorithm measures none.
    #[getter]
    fn rate(&self) -> Option<f64> {
        self.decision.rate
    }

    /// The rate that the rule allows, in cost units per second.
    #[getter]
    fn limit(&self) -> f64 {
        self.decision.limit
    }

    /// The number of requests of cost 1 that would be allowed now, one after the other.
    #[getter]
    fn remaining(&self) -> u64 {
        self.decision.remaining
    }

    /// The seconds from which on the same request is allowed; 0 if it is allowed, ``None`` for never.
    #[getter]
    fn retry_after(&self) -> Option<f64> {
        wait(self.decision.retry_after)
    }

    /// The seconds after which the same request would be allowed if the client sent nothing else; ``None`` for never.
    /// Under a strict average, ``retry_after`` of a denied request may be later: a time that no other one is told.
    #[getter]
    fn earliest(&self) -> Option<f64> {
        wait(self.decision.earliest())
    }

    /// The seconds after which the client's past requests no longer affect decisions.
    #[getter]
    fn reset_after(&self) -> f64 {
        self.decision.reset_after.as_secs_f64()
    }

    /// The seconds for which the caller must hold the request before serving it; 0 unless the action is ``delay``.
    #[getter]
    fn delay(&self) -> f64 {
        self.decision.delay.as_secs_f64()
    }

    /// The instant of the decision in nanoseconds of the limiter's clock, for ``refund``.
    #[getter]
    fn at(&self) -> u64 {
        self.decision.at.get()
    }

    /// Returns the headers ``RateLimit``, ``RateLimit-Policy`` and, for a denied request, ``Retry-After``.
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let headers = PyDict::new(py);
        let NamedRule { name, rule } = &*self.named;
        let available = self.available;
        // The seconds until a unit is available are those of a denied request's wait.
        let denied = available.filter(|_| !self.decision.allowed);
        let wait = denied.and_then(|quota| quota.seconds);
        for (header, value) in [
            ("RateLimit-Policy", policy_header(name, rule)),
            (
                "RateLimit",
                available.and_then(|quota| limit_header(name, quota)),
            ),
            ("Retry-After", wait.map(|seconds| seconds.to_string())),
        ] {
            if let Some(value) = value {
                headers.set_item(header, value)?;
            }
        }
        Ok(headers)
    }

    fn __bool__(&self) -> bool {
        self.decision.allowed
    }

    fn __repr__(&self) -> String {
        let wait = self
            .retry_after()
            .map_or_else(|| String::from("None"), |wait| wait.to_string());
        let allowed = if self.decision.allowed {
            "True"
        } else {
            "False"
        };
        format!(
            "<Decision allowed={allowed} remaining={} retry_after={wait}>",
            self.decision.remaining
        )
    }
}

fn wait(wait: Wait) -> Option<f64> {
    wait.duration().map(|wait: Duration| wait.as_secs_f64())
}
