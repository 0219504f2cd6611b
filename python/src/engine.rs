//! Several rules in one decision.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use earrrl::{Charge, Cost, Engine as _, Mode, Nanos, Rule, RuleId};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::clock::{self, TestClock, Timed};
use crate::decision::{Decision, NamedRule};
use crate::error::{invalid, raised, refused};
use crate::input::{self, key_bytes, wrong_type};

/// Decides requests under several named rules: a request is counted under all of them, or under none.
///
/// >>> from earrrl import Engine
/// >>> engine = Engine({"user": "gcra 1/h burst=1", "tokens": "token-bucket 1000 refill=100/h"})
/// >>> engine.check({"user": "alice", "tokens": ("alice", 1200)}).rule
/// 'tokens'
/// >>> bool(engine.check({"user": "alice", "tokens": ("alice", 800)}))
/// True
#[pyclass(frozen, module = "earrrl")]
pub(crate) struct Engine {
    /// On the heap, since it is aligned to cache lines, and Python's objects are not.
    engine: Timed<Box<earrrl_bindings::Engine>>,
    rules: Vec<(RuleId, Arc<NamedRule>)>,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (rules, path=None, capacity=100_000, *, clock=None))]
    fn new(
        py: Python<'_>,
        rules: &Bound<'_, PyAny>,
        path: Option<PathBuf>,
        capacity: usize,
        clock: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let named = input::dict("rules", rules)?.iter().map(|(name, rule)| {
            let (name, text): (String, String) = (name.extract()?, rule.extract()?);
            let rule: Rule = text
                .parse()
                .map_err(|error: earrrl::RuleError| invalid(error.of(&name)))?;
            Ok(Arc::new(NamedRule { name, rule }))
        });
        let named = named.collect::<PyResult<Vec<_>>>()?;
        let clock = clock::of(clock)?;
        py.detach(|| {
            let shared = clock.as_ref().map(TestClock::shared);
            let engine = earrrl_bindings::engine(path, capacity, shared).map_err(raised)?;
            let prepare = |named: Arc<NamedRule>| {
                Ok((
                    engine.prepare(&named.name, &named.rule).map_err(refused)?,
                    named,
                ))
            };
            let rules = named.into_iter().map(prepare).collect::<PyResult<_>>()?;
            let engine = Timed::new(Box::new(engine), clock);
            Ok(Self { engine, rules })
        })
    }

    /// Decides a request and counts it: ``check({"login": "alice", "address": ("192.0.2.7", 5)})``.
    fn check(&self, charges: &Bound<'_, PyAny>) -> PyResult<Decision> {
        self.decide(charges, Mode::Check)
    }

    /// Returns the decision that ``check`` would return, and counts nothing.
    fn peek(&self, charges: &Bound<'_, PyAny>) -> PyResult<Decision> {
        self.decide(charges, Mode::Peek)
    }

    /// Counts a request under every rule, even if it is over a limit.
    fn charge(&self, charges: &Bound<'_, PyAny>) -> PyResult<Decision> {
        self.decide(charges, Mode::Charge)
    }

    /// Takes back a request that was counted at ``at`` (``Decision.at``), by default the latest one.
    #[pyo3(signature = (charges, at=None))]
    fn refund(&self, charges: &Bound<'_, PyAny>, at: Option<u64>) -> PyResult<()> {
        let at = at.map(Nanos::new);
        let engine = self.engine.now(clock::time)?;
        let refund = |charge: &Charge<'_>| engine.refund(charge, at, None).into_inner();
        self.with_charges(charges, |charges, _| {
            charges.iter().try_for_each(refund).map_err(refused)
        })
    }

    /// Forgets a client of a rule.
    fn reset(&self, rule: &str, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let (id, _) = self.named(rule)?;
        self.engine
            .reset(*id, &key_bytes(key)?)
            .into_inner()
            .map_err(refused)
    }

    /// The rules: their names and texts.
    #[getter]
    fn rules<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let rules = PyDict::new(py);
        for (_, named) in &self.rules {
            rules.set_item(&named.name, named.rule.to_string())?;
        }
        Ok(rules)
    }
}

impl Engine {
    fn decide(&self, charges: &Bound<'_, PyAny>, mode: Mode) -> PyResult<Decision> {
        let engine = self.engine.now(clock::time)?;
        self.with_charges(charges, |charges, named| {
            let decision = engine.decide(charges, mode, None);
            let decision = decision.into_inner().map_err(refused)?;
            let deciding = charges[decision.rule];
            let peek = || {
                let one = Charge {
                    cost: Cost::ONE,
                    ..deciding
                };
                engine.decide(&[one], Mode::Peek, None).into_inner().ok()
            };
            Ok(Decision::new(decision, named[decision.rule], peek))
        })
    }

    /// Calls `then` with the charges of a request and their rules.
    fn with_charges<T>(
        &self,
        charges: &Bound<'_, PyAny>,
        then: impl FnOnce(&[Charge<'_>], &[&Arc<NamedRule>]) -> PyResult<T>,
    ) -> PyResult<T> {
        let charges = input::dict("charges", charges)?;
        let mut read = Vec::with_capacity(charges.len());
        let mut named = Vec::with_capacity(charges.len());
        for (rule, charge) in charges {
            let (id, rule) = self.named(&rule.extract::<Cow<'_, str>>()?)?;
            let (key, cost) = match charge.cast::<PyTuple>() {
                Ok(pair) if pair.len() == 2 => {
                    (pair.get_item(0)?, input::cost(Some(&pair.get_item(1)?))?)
                }
                Ok(_) => return Err(wrong_type("charge", &charge, "a key, or a key and a cost")),
                Err(_) => (charge, Cost::ONE),
            };
            read.push((*id, key_bytes(&key)?.into_owned(), cost));
            named.push(rule);
        }
        let charges: Vec<_> = read
            .iter()
            .map(|(rule, key, cost)| Charge {
                rule: *rule,
                key,
                cost: *cost,
            })
            .collect();
        then(&charges, &named)
    }

    fn named(&self, name: &str) -> PyResult<&(RuleId, Arc<NamedRule>)> {
        let known = self.rules.iter().find(|(_, named)| named.name == name);
        known.ok_or_else(|| PyKeyError::new_err(format!("no rule is called {name:?}")))
    }
}
