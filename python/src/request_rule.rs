//! Rules for requests: a limit with its key, its costs, its exemptions and its plans.

use earrrl::Cost;
use earrrl_tower::key::{self, Key, KeyBuffer};
use earrrl_tower::{ClientAddress, Missing, RequestRule};
use http::request::Parts;
use http::{HeaderName, StatusCode, response};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::error::invalid;
use crate::input::{self, key_bytes, wrong_type};

/// A rule for requests, with the key that tells clients apart and the cost of a request.
///
/// >>> from earrrl import Rule
/// >>> Rule("export", "token-bucket 100 refill=1/s", "header:x-api-key", missing=401, cost=10)
/// <Rule export: token-bucket 100 refill=1/s>
#[pyclass(frozen, module = "earrrl")]
pub(crate) struct Rule {
    name: String,
    rule: earrrl::Rule,
    key: Vec<KeyPart>,
    cost: RequestCost,
    cost_after: Option<Py<PyAny>>,
    settled: bool,
    missing: Missing,
    exempt: Option<Py<PyAny>>,
    plans: Vec<Plan>,
}

/// A rule that takes the place of another for the requests that match a condition.
struct Plan {
    name: String,
    rule: earrrl::Rule,
    applies: Py<PyAny>,
}

/// A part of the key of a rule's clients.
enum KeyPart {
    Client,
    Everyone,
    Method,
    Path,
    Header(HeaderName),
    Cookie(String),
    Call(Py<PyAny>),
}

enum RequestCost {
    Fixed(Cost),
    Call(Py<PyAny>),
}

/// The results of a rule's functions in Python for one request. They are called before anything is
/// charged, so that an exception leaves no charge.
#[derive(Clone, Default)]
pub(crate) struct Answers {
    is_exempt: bool,
    /// The keys that functions returned, in their order.
    keys: Vec<Option<Vec<u8>>>,
    plan: Option<usize>,
    cost: Cost,
}

/// The answers of all rules, among a request's extensions.
#[derive(Clone)]
pub(crate) struct AllAnswers(pub(crate) Vec<Answers>);

/// The costs by the response of all rules, among a response's extensions.
#[derive(Clone)]
pub(crate) struct CostsAfter(pub(crate) Vec<Cost>);

#[pymethods]
impl Rule {
    #[new]
    #[pyo3(signature = (
        name, limit, key=None, *, cost=None, cost_after=None, settled=false, missing=None, exempt=None, plans=None,
        action=None, max_delay=None, max_cost=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        name: String,
        limit: &str,
        key: Option<&Bound<'_, PyAny>>,
        cost: Option<&Bound<'_, PyAny>>,
        cost_after: Option<Bound<'_, PyAny>>,
        settled: bool,
        missing: Option<&Bound<'_, PyAny>>,
        exempt: Option<Bound<'_, PyAny>>,
        plans: Option<&Bound<'_, PyAny>>,
        action: Option<&str>,
        max_delay: Option<f64>,
        max_cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        earrrl::check_name(&name).map_err(invalid)?;
        let of = |text: &str| input::rule(text, action, max_delay, max_cost);
        let plan = |(name, plan): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            let (text, applies): (String, Py<PyAny>) = plan.extract()?;
            Ok(Plan {
                rule: of(&text)?,
                name: name.extract()?,
                applies,
            })
        };
        let plans = plans.map(|plans| input::dict("plans", plans)).transpose()?;
        Ok(Self {
            name,
            rule: of(limit)?,
            key: key.map_or_else(|| Ok(vec![KeyPart::Client]), key_parts)?,
            cost: request_cost(cost)?,
            cost_after: callable("cost_after", cost_after)?,
            settled,
            missing: missing.map_or(Ok(Missing::Shared), read_missing)?,
            exempt: callable("exempt", exempt)?,
            plans: plans
                .into_iter()
                .flatten()
                .map(plan)
                .collect::<PyResult<_>>()?,
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.functions()
            .try_for_each(|function| visit.call(function))
    }

    fn __repr__(&self) -> String {
        format!("<Rule {}: {}>", self.name, self.rule)
    }
}

impl Rule {
    /// Returns the rule as the layer takes it. `place` is its place among the rules of the layer.
    pub(crate) fn for_layer(&self, place: usize, address: &ClientAddress) -> RequestRule {
        let key = self.layer_key(place, address);
        let mut rule = RequestRule::new(self.name.clone(), self.rule.clone(), key)
            .missing(self.missing)
            .exempt(move |request| answers(request, place).is_some_and(|own| own.is_exempt));
        rule = match &self.cost {
            RequestCost::Fixed(cost) => rule.cost(*cost),
            RequestCost::Call(_) => rule
                .cost_by(move |request| answers(request, place).map_or(Cost::ONE, |own| own.cost)),
        };
        if self.cost_after.is_some() {
            rule = rule.cost_after(move |response: &response::Parts| {
                let costs = response.extensions.get::<CostsAfter>();
                costs
                    .and_then(|costs| costs.0.get(place).copied())
                    .unwrap_or_default()
            });
        }
        for (nth, plan) in self.plans.iter().enumerate() {
            rule = rule.plan(plan.name.clone(), plan.rule.clone(), move |request| {
                answers(request, place).is_some_and(|own| own.plan == Some(nth))
            });
        }
        if self.settled { rule.settled() } else { rule }
    }

    fn layer_key(&self, place: usize, address: &ClientAddress) -> Box<dyn Key> {
        let mut functions = 0..;
        let mut parts = self.key.iter().map(|part| -> Box<dyn Key> {
            match part {
                KeyPart::Client => Box::new(address.clone()),
                KeyPart::Everyone => Box::new(key::Everyone),
                KeyPart::Method => Box::new(key::Method),
                KeyPart::Path => Box::new(key::by(|request| Some(request.uri.path().to_owned()))),
                KeyPart::Header(name) => Box::new(key::header(name.clone())),
                KeyPart::Cookie(name) => Box::new(key::cookie(name.clone())),
                KeyPart::Call(_) => Box::new(AnsweredKey {
                    place,
                    function: functions.next().unwrap_or_default(),
                }),
            }
        });
        match (parts.next(), parts.len()) {
            (Some(only), 0) => only,
            (first, _) => Box::new(first.into_iter().chain(parts).collect::<Vec<_>>()),
        }
    }

    /// Adds the names of the headers that the rule reads.
    pub(crate) fn add_headers(&self, address: &ClientAddress, names: &mut Vec<String>) {
        for part in &self.key {
            match part {
                KeyPart::Client if address.believes_proxies() => {
                    names.push(address.header().to_owned());
                }
                KeyPart::Header(name) => names.push(name.as_str().to_owned()),
                KeyPart::Cookie(_) => names.push("cookie".to_owned()),
                _ => {}
            }
        }
    }

    /// Calls the functions of the rule with a request.
    ///
    /// # Errors
    /// Returns the exceptions of the functions, and a `TypeError` for a result of another type.
    pub(crate) fn ask(&self, request: &Bound<'_, PyAny>) -> PyResult<Answers> {
        let py = request.py();
        let mut answers = Answers::default();
        if let Some(exempt) = &self.exempt
            && exempt.call1(py, (request,))?.is_truthy(py)?
        {
            answers.is_exempt = true;
            return Ok(answers);
        }
        for part in &self.key {
            if let KeyPart::Call(function) = part {
                let key = function.bind(py).call1((request,))?;
                let bytes = if key.is_none() {
                    None
                } else {
                    Some(key_bytes(&key)?.into_owned())
                };
                answers.keys.push(bytes);
            }
        }
        for (nth, plan) in self.plans.iter().enumerate() {
            if plan.applies.call1(py, (request,))?.is_truthy(py)? {
                answers.plan = Some(nth);
                break;
            }
        }
        if let RequestCost::Call(function) = &self.cost {
            answers.cost = input::cost(Some(&function.bind(py).call1((request,))?))?;
        }
        Ok(answers)
    }

    /// Returns true if the rule has functions that [`ask`](Self::ask) calls.
    pub(crate) fn has_functions(&self) -> bool {
        self.exempt.is_some()
            || !self.plans.is_empty()
            || matches!(self.cost, RequestCost::Call(_))
            || self.key.iter().any(|part| matches!(part, KeyPart::Call(_)))
    }

    /// Returns the cost that a response adds, by its status and its headers.
    ///
    /// # Errors
    /// Returns the exceptions of the function, and a `TypeError` for a result that is no cost.
    pub(crate) fn cost_after(
        &self,
        status: u16,
        headers: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Cost>> {
        let Some(function) = &self.cost_after else {
            return Ok(None);
        };
        let cost = function.bind(headers.py()).call1((status, headers))?;
        input::cost(Some(&cost)).map(Some)
    }

    /// Returns the functions of the rule.
    fn functions(&self) -> impl Iterator<Item = &Py<PyAny>> {
        let cost = match &self.cost {
            RequestCost::Call(function) => Some(function),
            RequestCost::Fixed(_) => None,
        };
        let keys = self.key.iter().filter_map(|part| match part {
            KeyPart::Call(function) => Some(function),
            _ => None,
        });
        let plans = self.plans.iter().map(|plan| &plan.applies);
        cost.into_iter()
            .chain(&self.cost_after)
            .chain(&self.exempt)
            .chain(keys)
            .chain(plans)
    }
}

/// Returns the answers of the rule at a place of the layer.
fn answers(request: &Parts, place: usize) -> Option<&Answers> {
    request.extensions.get::<AllAnswers>()?.0.get(place)
}

/// A key that a function in Python returned.
struct AnsweredKey {
    /// The place of the rule in the layer.
    place: usize,
    /// The place of the function among those of the rule's key.
    function: usize,
}

impl Key for AnsweredKey {
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        let bytes =
            answers(request, self.place).and_then(|own| own.keys.get(self.function)?.as_deref());
        bytes.inspect(|bytes| key.push(bytes)).is_some()
    }
}

/// Reads a key: a part, or a list or tuple of parts.
fn key_parts(key: &Bound<'_, PyAny>) -> PyResult<Vec<KeyPart>> {
    let parts: Vec<Bound<'_, PyAny>> = match (key.cast::<PyList>(), key.cast::<PyTuple>()) {
        (Ok(list), _) => list.iter().collect(),
        (_, Ok(tuple)) => tuple.iter().collect(),
        _ => vec![key.clone()],
    };
    if parts.is_empty() {
        return Err(PyValueError::new_err(
            "key: an empty list; expected at least one part",
        ));
    }
    parts.iter().map(key_part).collect()
}

fn key_part(part: &Bound<'_, PyAny>) -> PyResult<KeyPart> {
    if part.is_callable() {
        return Ok(KeyPart::Call(part.clone().unbind()));
    }
    let Ok(text) = part.cast::<PyString>() else {
        return Err(wrong_type(
            "key",
            part,
            "a text, a function, or a list of these",
        ));
    };
    let text = text.to_cow()?;
    match (&*text, text.split_once(':')) {
        ("client", _) => Ok(KeyPart::Client),
        ("everyone", _) => Ok(KeyPart::Everyone),
        ("method", _) => Ok(KeyPart::Method),
        ("path", _) => Ok(KeyPart::Path),
        (_, Some(("header", name))) => match name.parse() {
            Ok(name) => Ok(KeyPart::Header(name)),
            Err(_) => Err(PyValueError::new_err(format!(
                "key: {name:?} is not the name of a header"
            ))),
        },
        (_, Some(("cookie", name))) => Ok(KeyPart::Cookie(name.to_owned())),
        _ => Err(PyValueError::new_err(format!(
            "key: {text:?} is not client, everyone, method, path, header:NAME or cookie:NAME"
        ))),
    }
}

fn request_cost(cost: Option<&Bound<'_, PyAny>>) -> PyResult<RequestCost> {
    match cost {
        Some(function) if function.is_callable() => {
            Ok(RequestCost::Call(function.clone().unbind()))
        }
        cost => input::cost(cost).map(RequestCost::Fixed),
    }
}

fn read_missing(missing: &Bound<'_, PyAny>) -> PyResult<Missing> {
    if let Ok(status) = missing.extract::<u16>() {
        let status = StatusCode::from_u16(status)
            .ok()
            .filter(|status| status.as_u16() >= 400);
        return status.map(Missing::Deny).ok_or_else(wrong_missing);
    }
    match missing.extract::<String>().as_deref() {
        Ok("share") => Ok(Missing::Shared),
        Ok("skip") => Ok(Missing::Skip),
        _ => Err(wrong_missing()),
    }
}

fn wrong_missing() -> PyErr {
    PyValueError::new_err("missing: expected share, skip, or a status from 400 to 999")
}

fn callable(name: &str, function: Option<Bound<'_, PyAny>>) -> PyResult<Option<Py<PyAny>>> {
    match function {
        Some(function) if !function.is_callable() => Err(wrong_type(name, &function, "a function")),
        function => Ok(function.map(Bound::unbind)),
    }
}
