//! Rules for requests: a limit with its key, its costs, its exemptions and its plans.

use earrrl::Cost;
use earrrl_bindings::{Answers, KeyPart, Plan, RequestRule, missing, status};
use earrrl_tower::Missing;
use earrrl_tower::path::PathPattern;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::error::raised;
use crate::function::Function;
use crate::input::{self, KEYS, key_bytes, wrong_type};

/// A rule for requests, with the key that tells clients apart and the cost of a request.
///
/// >>> from earrrl import Rule
/// >>> Rule("export", "token-bucket 100 refill=1/s", "header:x-api-key", missing=401, cost=10)
/// <Rule export: token-bucket 100 refill=1/s>
#[pyclass(frozen, module = "earrrl")]
pub(crate) struct Rule {
    pub(crate) rule: RequestRule,
    /// The functions of the key, in the order of its parts.
    keys: Vec<Function>,
    cost: Option<Function>,
    cost_after: Option<Function>,
    exempt: Option<Function>,
    /// The conditions of the plans.
    plans: Vec<Function>,
    limit_by: Option<Function>,
}

#[pymethods]
impl Rule {
    #[new]
    #[pyo3(signature = (
        name, limit, key=None, *, paths=None, cost=None, cost_after=None, settled=false, missing=None, exempt=None,
        plans=None, limit_by=None, action=None, max_delay=None, max_cost=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        name: String,
        limit: &str,
        key: Option<&Bound<'_, PyAny>>,
        paths: Option<&Bound<'_, PyAny>>,
        cost: Option<&Bound<'_, PyAny>>,
        cost_after: Option<&Bound<'_, PyAny>>,
        settled: bool,
        missing: Option<&Bound<'_, PyAny>>,
        exempt: Option<&Bound<'_, PyAny>>,
        plans: Option<&Bound<'_, PyAny>>,
        limit_by: Option<&Bound<'_, PyAny>>,
        action: Option<&str>,
        max_delay: Option<f64>,
        max_cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let options = input::rule_options(action, max_delay, max_cost)?;
        let limit = options.rule(limit).map_err(raised)?;
        let mut rule = RequestRule::new(name, limit).map_err(raised)?;
        let mut keys = Vec::new();
        if let Some(key) = key {
            rule.key = key_parts(key, &mut keys)?;
        }
        if let Some(paths) = paths {
            rule.paths = path_patterns(paths)?;
        }
        if let Some(missing) = missing {
            rule.missing = read_missing(missing)?;
        }
        let cost = match cost {
            Some(function) if function.is_callable() => Some(Function::new("cost", function)?),
            fixed => {
                rule.cost = input::cost(fixed)?;
                None
            }
        };
        let cost_after = cost_after
            .map(|function| Function::new("cost_after", function))
            .transpose()?;
        rule.has_cost_after = cost_after.is_some();
        rule.is_settled = settled;
        let exempt = exempt
            .map(|function| Function::new("exempt", function))
            .transpose()?;
        let mut conditions = Vec::new();
        let plans = plans.map(|plans| input::dict("plans", plans)).transpose()?;
        for (name, plan) in plans.into_iter().flatten() {
            let (text, applies): (String, Bound<'_, PyAny>) = plan.extract()?;
            rule.plans.push(Plan {
                name: name.extract()?,
                rule: options.rule(&text).map_err(raised)?,
            });
            conditions.push(Function::new("plans", &applies)?);
        }
        let limit_by = limit_by
            .map(|function| Function::new("limit_by", function))
            .transpose()?;
        rule.has_limit_by = limit_by.is_some();
        Ok(Self {
            rule,
            keys,
            cost,
            cost_after,
            exempt,
            plans: conditions,
            limit_by,
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let functions = self.keys.iter().chain(&self.cost).chain(&self.cost_after);
        functions
            .chain(&self.exempt)
            .chain(&self.plans)
            .chain(&self.limit_by)
            .try_for_each(|function| function.traverse(&visit))
    }

    fn __repr__(&self) -> String {
        format!("<Rule {}: {}>", self.rule.name(), self.rule.limit())
    }
}

impl Rule {
    /// Calls the functions of the rule with a request.
    ///
    /// # Errors
    /// Returns the exceptions of the functions, and a `TypeError` for a result of another type.
    pub(crate) fn ask(&self, request: &Bound<'_, PyAny>) -> PyResult<Answers> {
        let py = request.py();
        let mut answers = Answers::default();
        if let Some(exempt) = &self.exempt
            && exempt.call(py, (request,))?.is_truthy()?
        {
            answers.is_exempt = true;
            return Ok(answers);
        }
        for function in &self.keys {
            let key = function.call(py, (request,))?;
            let bytes = if key.is_none() {
                None
            } else {
                let expected = |error: PyErr| {
                    let is_type = error.is_instance_of::<pyo3::exceptions::PyTypeError>(py);
                    if is_type {
                        function.wrong(&key, KEYS)
                    } else {
                        error
                    }
                };
                Some(key_bytes(&key).map_err(expected)?.into_owned())
            };
            answers.keys.push(bytes);
        }
        for (nth, plan) in self.plans.iter().enumerate() {
            if plan.call(py, (request,))?.is_truthy()? {
                answers.plan = Some(nth);
                break;
            }
        }
        if let Some(function) = &self.limit_by
            && answers.plan.is_none()
        {
            let limit = function.call(py, (request,))?;
            let text = limit.extract();
            answers.limit =
                text.map_err(|_| function.wrong(&limit, "the text of a limit, or None"))?;
        }
        if let Some(function) = &self.cost {
            answers.cost = Some(input::cost(Some(&function.call(py, (request,))?))?);
        }
        Ok(answers)
    }

    /// Returns true if the rule has functions that [`ask`](Self::ask) calls.
    pub(crate) fn has_functions(&self) -> bool {
        self.exempt.is_some()
            || self.cost.is_some()
            || !self.keys.is_empty()
            || !self.plans.is_empty()
            || self.limit_by.is_some()
    }

    /// Returns the cost that a response adds, by its status and its headers.
    ///
    /// # Errors
    /// Returns the exceptions of the function, and a `TypeError` for a result that is no cost.
    pub(crate) fn cost_after(&self, status: u16, headers: &Bound<'_, PyAny>) -> PyResult<Cost> {
        let Some(function) = &self.cost_after else {
            return Ok(Cost::ZERO);
        };
        input::cost(Some(&function.call(headers.py(), (status, headers))?))
    }
}

/// Reads a key: a part, or a list or tuple of parts. Its functions are added to `functions`.
fn key_parts(key: &Bound<'_, PyAny>, functions: &mut Vec<Function>) -> PyResult<Vec<KeyPart>> {
    let parts = one_or_many(key);
    if parts.is_empty() {
        let problem = "key: an empty list; expected at least one part";
        return Err(PyValueError::new_err(problem));
    }
    let mut key_part = |part: &Bound<'_, PyAny>| {
        if part.is_callable() {
            functions.push(Function::new("key", part)?);
            return earrrl_bindings::key_part(None).map_err(raised);
        }
        match part.cast::<PyString>() {
            Ok(text) => earrrl_bindings::key_part(Some(&text.to_cow()?)).map_err(raised),
            Err(_) => {
                let expected = "a text, a function, or a list of these";
                Err(wrong_type("key", part, expected))
            }
        }
    };
    parts.iter().map(&mut key_part).collect()
}

/// Reads the paths to which a rule applies: one, or a list or tuple.
fn path_patterns(paths: &Bound<'_, PyAny>) -> PyResult<Vec<PathPattern>> {
    let paths = one_or_many(paths);
    if paths.is_empty() {
        let problem = "paths: an empty list; expected at least one path, such as /login";
        return Err(PyValueError::new_err(problem));
    }
    let pattern = |path: &Bound<'_, PyAny>| {
        let Ok(text) = path.extract::<String>() else {
            return Err(wrong_type("paths", path, "a path, or a list of paths"));
        };
        let wrong = |why| PyValueError::new_err(format!("paths: {why}"));
        text.parse().map_err(wrong)
    };
    paths.iter().map(pattern).collect()
}

/// Returns the items of a list or tuple, or a value alone.
fn one_or_many<'py>(value: &Bound<'py, PyAny>) -> Vec<Bound<'py, PyAny>> {
    match (value.cast::<PyList>(), value.cast::<PyTuple>()) {
        (Ok(list), _) => list.iter().collect(),
        (_, Ok(tuple)) => tuple.iter().collect(),
        _ => vec![value.clone()],
    }
}

fn read_missing(value: &Bound<'_, PyAny>) -> PyResult<Missing> {
    if let Ok(code) = value.extract::<u16>() {
        return Ok(Missing::Deny(status("missing", code).map_err(raised)?));
    }
    match value.extract::<String>() {
        Ok(name) => missing(&name).map_err(raised),
        Err(_) => Err(wrong_type("missing", value, "share, skip, or a status")),
    }
}
