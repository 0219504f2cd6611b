//! The keyed limiter: one rule for many clients.

use std::path::PathBuf;
use std::sync::Arc;

use earrrl::internal::check_name;
use earrrl::{Mode, Nanos, RuleError, Verdict};
use earrrl_bindings::{Clock, TestClock, check_clock};
use pyo3::prelude::*;

use crate::clock::{self, Timed};
use crate::decision::{Decision, NamedRule};
use crate::error::{invalid, not_built, raised};
use crate::input::{self, with_key};

/// Decides requests under one rule, for at most ``capacity`` clients.
///
/// >>> from earrrl import Limiter
/// >>> limiter = Limiter("token-bucket 10 refill=1/h")
/// >>> decision = limiter.check("alice", cost=8)
/// >>> decision
/// <Decision allowed=True remaining=2 retry_after=0>
/// >>> limiter.peek("alice", cost=8).allowed
/// False
/// >>> limiter.refund("alice", cost=8, at=decision.at)
/// >>> bool(limiter.check("alice", cost=8))
/// True
#[pyclass(frozen, module = "earrrl")]
pub(crate) struct Limiter {
    /// On the heap, since it is aligned to cache lines, and Python's objects are not.
    limiter: Timed<Box<earrrl::Limiter<[u8], Clock>>>,
    named: Arc<NamedRule>,
}

#[pymethods]
impl Limiter {
    #[new]
    #[pyo3(signature = (rule, path=None, capacity=100_000, *, action=None, max_delay=None, max_cost=None, name="default", clock=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        rule: &str,
        path: Option<PathBuf>,
        capacity: usize,
        action: Option<&str>,
        max_delay: Option<f64>,
        max_cost: Option<&Bound<'_, PyAny>>,
        name: &str,
        clock: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        check_name(name).map_err(invalid)?;
        check_clock(clock.is_some(), path.is_some()).map_err(raised)?;
        let options = input::rule_options(action, max_delay, max_cost)?;
        let rule = options.rule(rule).map_err(raised)?;
        let named = Arc::new(NamedRule {
            name: name.to_owned(),
            rule: rule.clone(),
        });
        let mut builder = earrrl::Limiter::builder(rule).capacity(capacity);
        if let Some(path) = path {
            builder = builder.state_file(path);
        }
        let clock = clock::of(clock)?;
        let shared = clock.as_ref().map(TestClock::shared);
        let builder = builder.clock_of(|anchor| Clock::new(shared, anchor));
        // Allocating a large table or file takes a while.
        let limiter = py.detach(|| builder.build()).map_err(not_built)?;
        let limiter = Timed::new(Box::new(limiter), clock);
        Ok(Self { limiter, named })
    }

    /// Decides a request and counts it, as the rule's policy demands.
    #[pyo3(signature = (key, cost=None))]
    fn check(&self, key: &Bound<'_, PyAny>, cost: Option<&Bound<'_, PyAny>>) -> PyResult<Decision> {
        let cost = input::cost(cost)?;
        let limiter = self.limiter.now(clock::time)?;
        with_key(key, |key| self.decision(limiter.check_cost(key, cost), key))?
    }

    /// Decides a request as of the instant ``at``, in nanoseconds since the epoch, or as of the latest
    /// instant that was used if that is later: for replays of logs.
    #[pyo3(signature = (key, at, cost=None))]
    fn check_at(
        &self,
        key: &Bound<'_, PyAny>,
        at: u64,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Decision> {
        self.decide_at(key, at, cost, Mode::Check)
    }

    /// Returns the decision that ``check_at`` would return, and counts nothing.
    #[pyo3(signature = (key, at, cost=None))]
    fn peek_at(
        &self,
        key: &Bound<'_, PyAny>,
        at: u64,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Decision> {
        self.decide_at(key, at, cost, Mode::Peek)
    }

    /// Counts a request as of the instant ``at`` even if it is over the limit.
    #[pyo3(signature = (key, at, cost=None))]
    fn charge_at(
        &self,
        key: &Bound<'_, PyAny>,
        at: u64,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Decision> {
        self.decide_at(key, at, cost, Mode::Charge)
    }

    /// Takes back, as of the instant ``at``, a request that was counted at ``charged_at``, by default the latest one.
    #[pyo3(signature = (key, at, cost=None, charged_at=None))]
    fn refund_at(
        &self,
        key: &Bound<'_, PyAny>,
        at: u64,
        cost: Option<&Bound<'_, PyAny>>,
        charged_at: Option<u64>,
    ) -> PyResult<()> {
        let cost = input::cost(cost)?;
        let charged_at = charged_at.map(Nanos::new);
        with_key(key, |key| {
            self.limiter
                .refund_at(key, cost, charged_at, Nanos::new(at));
        })
    }

    /// Returns the decision that ``check`` would return, and counts nothing.
    #[pyo3(signature = (key, cost=None))]
    fn peek(&self, key: &Bound<'_, PyAny>, cost: Option<&Bound<'_, PyAny>>) -> PyResult<Decision> {
        let cost = input::cost(cost)?;
        let limiter = self.limiter.now(clock::time)?;
        with_key(key, |key| self.decision(limiter.peek(key, cost), key))?
    }

    /// Counts a request even if it is over the limit, for costs that are known only afterwards.
    #[pyo3(signature = (key, cost=None))]
    fn charge(
        &self,
        key: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Decision> {
        let cost = input::cost(cost)?;
        let limiter = self.limiter.now(clock::time)?;
        with_key(key, |key| self.decision(limiter.charge(key, cost), key))?
    }

    /// Takes back a request that was counted at ``at`` (``Decision.at``), by default the latest one.
    #[pyo3(signature = (key, cost=None, at=None))]
    fn refund(
        &self,
        key: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
        at: Option<u64>,
    ) -> PyResult<()> {
        let cost = input::cost(cost)?;
        let limiter = self.limiter.now(clock::time)?;
        with_key(key, |key| limiter.refund(key, cost, at.map(Nanos::new)))
    }

    /// Forgets a client.
    fn reset(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        with_key(key, |key| self.limiter.reset(key))
    }

    /// Forgets all clients, those of other processes that use the file among them. Returns their number.
    fn clear(&self, py: Python<'_>) -> usize {
        py.detach(|| self.limiter.clear())
    }

    /// The rule's text.
    #[getter]
    fn rule(&self) -> String {
        self.named.rule.to_string()
    }

    /// Returns the number of stored clients, including idle ones: an estimate from a sample of a large
    /// table, in which few clients may count as 0.
    fn __len__(&self) -> usize {
        self.limiter.len()
    }

    /// Returns true, although a limiter without clients has the length 0.
    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self) -> String {
        format!("<Limiter {:?}>", self.named.rule.to_string())
    }
}

impl Limiter {
    fn decide_at(
        &self,
        key: &Bound<'_, PyAny>,
        at: u64,
        cost: Option<&Bound<'_, PyAny>>,
        mode: Mode,
    ) -> PyResult<Decision> {
        let at = Nanos::new(at);
        let cost = input::cost(cost)?;
        let limiter = &self.limiter;
        with_key(key, |key| {
            let verdict = match mode {
                Mode::Check => limiter.check_at(key, cost, at),
                Mode::Peek => limiter.peek_at(key, cost, at),
                Mode::Charge => limiter.charge_at(key, cost, at),
            };
            let peek = || Some(limiter.peek_at(key, earrrl::Cost::ONE, at).ok()?.decision());
            let decision = verdict.map_err(invalid)?.decision();
            Ok(Decision::new(decision, &self.named, peek))
        })?
    }

    #[inline]
    fn decision(&self, verdict: Result<Verdict<'_>, RuleError>, key: &[u8]) -> PyResult<Decision> {
        let verdict = verdict.map_err(invalid)?;
        let peek = || Some(self.limiter.peek(key, earrrl::Cost::ONE).ok()?.decision());
        Ok(Decision::new(verdict.decision(), &self.named, peek))
    }
}
