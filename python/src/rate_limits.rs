//! The rules of a service, and the treatment of its requests: what both middlewares ask.

use std::ffi::CString;
use std::net::IpAddr;
use std::path::PathBuf;

use earrrl::{Charge, Cost, Engine as _, MemoryEngine, RuleId};
use earrrl_tower::{
    AddressSource, ClientAddress, Judged, LayerError, PeerAddress, Prefixes, RateLimitLayer,
    Verdict, bounded_key,
};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use pyo3::exceptions::{PyKeyError, PyRuntimeWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use pyo3::{PyTraverseError, PyVisit};

use crate::decision::{Client, Decision};
use crate::error::{not_built, refused};
use crate::input::{self, key_bytes};
use crate::passing::{Passing, Refusal};
use crate::request_rule::{AllAnswers, Rule};

/// The rules of a service, over one engine. Both middlewares take it.
///
/// >>> from earrrl import RateLimits, Rule
/// >>> limits = RateLimits([Rule("address", "gcra 5/s burst=20")], trusted_proxies=["10.0.0.0/8"])
/// >>> limits.change("address", "gcra 10/s burst=40")
#[pyclass(frozen, module = "earrrl")]
pub(crate) struct RateLimits {
    layer: RateLimitLayer<MemoryEngine>,
    pub(crate) rules: Vec<Py<Rule>>,
    /// The names of the headers that are read, in lower case.
    headers: Vec<String>,
    has_functions: bool,
}

#[pymethods]
impl RateLimits {
    #[new]
    #[pyo3(signature = (
        rules, path=None, capacity=100_000, *, trusted_proxies=None, hops=0, source="x-forwarded-for", ipv4_prefix=32,
        ipv6_prefix=64, status=429, headers_on_allowed=true, x_rate_limit=false, always_verdict=false, max_held=1000,
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
        ipv4_prefix: u8,
        ipv6_prefix: u8,
        status: u16,
        headers_on_allowed: bool,
        x_rate_limit: bool,
        always_verdict: bool,
        max_held: usize,
    ) -> PyResult<Self> {
        let proxies = trusted_proxies.map_or(Ok(Vec::new()), |networks| {
            let expected = "a list of networks such as [\"10.0.0.0/8\"]";
            let texts = networks.extract::<Vec<String>>();
            texts.map_err(|_| input::wrong_type("trusted_proxies", networks, expected))
        })?;
        let address = client_address(&proxies, hops, source)?;
        let address = address.prefixes(read_prefixes(ipv4_prefix, ipv6_prefix)?);
        let status = read_status(status)?;
        let engine = py.detach(|| match path {
            Some(path) => MemoryEngine::with_state_for(capacity, path),
            None => MemoryEngine::new(capacity),
        });
        let mut builder = RateLimitLayer::builder(engine.map_err(not_built)?)
            .status(status)
            .headers_on_allowed(headers_on_allowed)
            .x_rate_limit(x_rate_limit)
            .always_verdict(always_verdict)
            .max_held(max_held);
        // Calls over gRPC are recognised by their type.
        let mut headers = vec!["content-type".to_owned()];
        for (place, rule) in rules.iter().enumerate() {
            builder = builder.rule(rule.get().for_layer(place, &address));
            rule.get().add_headers(&address, &mut headers);
        }
        let layer = py.detach(|| builder.build()).map_err(layer_error)?;
        for (name, before) in layer.engine().superseded() {
            let text = format!(
                "rule {name}: `{before}` had another algorithm, so clients begin afresh, also in other services that use this path"
            );
            PyErr::warn(
                py,
                &py.get_type::<PyRuntimeWarning>(),
                &CString::new(text)?,
                1,
            )?;
        }
        let has_functions = rules.iter().any(|rule| rule.get().has_functions());
        Ok(Self {
            layer,
            rules,
            headers,
            has_functions,
        })
    }

    /// Judges a request: ``headers`` are pairs of bytes, ``peer`` is the connection's address, and
    /// ``request`` is what the functions of the rules get. Returns a ``Passing`` or a ``Refusal``.
    fn judge<'py>(
        slf: &Bound<'py, Self>,
        method: &str,
        target: &[u8],
        headers: &Bound<'py, PyAny>,
        peer: Option<&str>,
        request: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        let mut parts = Request::new(()).into_parts().0;
        parts.method = method.parse().unwrap_or_default();
        parts.uri = target.try_into().unwrap_or_default();
        if let Some(address) = peer.and_then(|peer| peer.parse::<IpAddr>().ok()) {
            parts.extensions.insert(PeerAddress(address));
        }
        this.add_headers(headers, &mut parts)?;
        if this.has_functions {
            let answers = this.rules.iter().map(|rule| rule.get().ask(request));
            parts
                .extensions
                .insert(AllAnswers(answers.collect::<PyResult<_>>()?));
        }
        match this.layer.judge(&parts) {
            Judged::Pass(passed) => {
                let passing = Passing::new(slf.clone().unbind(), passed);
                Ok(Bound::new(py, passing)?.into_any())
            }
            Judged::Refuse(response) => Ok(Bound::new(py, Refusal::new(response))?.into_any()),
            _ => Err(PyValueError::new_err("an unknown treatment of the request")),
        }
    }

    /// The names of the headers that the rules read, in lower case.
    #[getter]
    fn headers(&self) -> Vec<String> {
        self.headers.clone()
    }

    /// Changes the limit of a rule or plan while requests go on. Clients keep their history unless
    /// the algorithm changes. Its action and greatest cost stay.
    fn change(&self, py: Python<'_>, name: &str, limit: &str) -> PyResult<()> {
        let known = self
            .layer
            .engine()
            .prepared(name)
            .ok_or_else(|| unknown(name))?;
        let rule: earrrl::Rule = limit.parse().map_err(crate::error::invalid)?;
        let rule = rule
            .with_max_cost(known.max_cost())
            .and_then(|r| r.with_action(known.action()));
        let rule = rule.map_err(crate::error::invalid)?;
        py.detach(|| self.layer.change(name, &rule))
            .map_err(layer_error)
    }

    /// Forgets a client of a rule or plan.
    fn reset(&self, name: &str, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = key_bytes(key)?;
        let done = self
            .layer
            .engine()
            .reset(self.id(name)?, &bounded_key(&key));
        done.into_inner().map_err(refused)
    }

    /// Takes back one request of a client under a rule or plan.
    #[pyo3(signature = (name, key, cost=None))]
    fn refund(
        &self,
        name: &str,
        key: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (key, cost): (_, Cost) = (key_bytes(key)?, input::cost(cost)?);
        let charge = Charge {
            rule: self.id(name)?,
            key: &bounded_key(&key),
            cost,
        };
        self.layer
            .engine()
            .refund(&charge, None, None)
            .into_inner()
            .map_err(refused)
    }

    /// Returns the ``count`` clients of a rule or plan with the highest rates, the highest first.
    #[pyo3(signature = (name, count=10))]
    fn top(&self, py: Python<'_>, name: &str, count: usize) -> PyResult<Vec<Client>> {
        let id = self.id(name)?;
        let top = py
            .detach(|| self.layer.engine().top(id, count))
            .map_err(refused)?;
        Ok(top.into_iter().map(Client::from).collect())
    }

    /// Returns the number by which ``top`` reports a key.
    fn fingerprint(&self, key: &Bound<'_, PyAny>) -> PyResult<u64> {
        Ok(self
            .layer
            .engine()
            .hash(&bounded_key(&key_bytes(key)?))
            .fingerprint())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.rules.iter().try_for_each(|rule| visit.call(rule))
    }
}

impl RateLimits {
    fn add_headers(&self, headers: &Bound<'_, PyAny>, parts: &mut Parts) -> PyResult<()> {
        for pair in headers.cast::<PyList>()?.iter() {
            let (name, value) = header(&pair)?;
            let is_read = |known: &String| known.as_bytes().eq_ignore_ascii_case(name.as_bytes());
            let Some(known) = self.headers.iter().find(|known| is_read(known)) else {
                continue;
            };
            let name = HeaderName::from_bytes(known.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
                // More headers than the map takes are of no use to a rule.
                let _ = parts.headers.try_append(name, value);
            }
        }
        Ok(())
    }

    /// Returns a decision for the handler of its request.
    pub(crate) fn decision(&self, verdict: Verdict) -> Option<Decision> {
        let (name, decision) = verdict.rule.zip(verdict.decision)?;
        let rule = self.layer.engine().prepared(&name)?;
        Some(Decision::of_rule(decision, &name, rule))
    }

    fn id(&self, name: &str) -> PyResult<RuleId> {
        let rules = self.layer.engine().rules();
        let place = rules.iter().position(|(known, _)| known == name);
        place
            .map(|place| RuleId(place as u32))
            .ok_or_else(|| unknown(name))
    }
}

/// Returns the name and the value of a header: a tuple, or another sequence of two, such as the lists of some servers.
fn header<'py>(pair: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    if let Ok(tuple) = pair.extract() {
        return Ok(tuple);
    }
    let [name, value]: [Bound<'py, PyBytes>; 2] = pair.extract()?;
    Ok((name, value))
}

fn client_address(proxies: &[String], hops: usize, source: &str) -> PyResult<ClientAddress> {
    let address = ClientAddress::default()
        .hops(hops)
        .source(read_source(source)?);
    let networks = proxies
        .iter()
        .map(|text| read_network(text))
        .collect::<PyResult<Vec<_>>>()?;
    let address = networks.into_iter().fold(address, ClientAddress::trust);
    address.validate().map_err(PyValueError::new_err)?;
    Ok(address)
}

fn read_status(status: u16) -> PyResult<StatusCode> {
    let status = StatusCode::from_u16(status)
        .ok()
        .filter(|status| status.as_u16() >= 400);
    status.ok_or_else(|| PyValueError::new_err("status: expected a status from 400 to 999"))
}

fn read_source(source: &str) -> PyResult<AddressSource> {
    match source.to_ascii_lowercase().as_str() {
        "x-forwarded-for" => Ok(AddressSource::XForwardedFor),
        "forwarded" => Ok(AddressSource::Forwarded),
        name => name.parse().map(AddressSource::Header).map_err(|_| {
            PyValueError::new_err(format!("source: {source:?} is not the name of a header"))
        }),
    }
}

fn read_network(text: &str) -> PyResult<ipnet::IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(ipnet::IpNet::from);
    text.parse().ok().or_else(address).ok_or_else(|| {
        PyValueError::new_err(format!(
            "trusted_proxies: {text:?} is not a network such as 10.0.0.0/8"
        ))
    })
}

fn read_prefixes(ipv4: u8, ipv6: u8) -> PyResult<Prefixes> {
    for (name, bits, most) in [("ipv4_prefix", ipv4, 32), ("ipv6_prefix", ipv6, 128)] {
        if bits > most {
            let problem = format!("{name}: {bits} is not from 0 to {most}");
            return Err(PyValueError::new_err(problem));
        }
    }
    Ok(Prefixes::new(ipv4, ipv6))
}

fn unknown(name: &str) -> PyErr {
    PyKeyError::new_err(format!("neither a rule nor a plan is called {name:?}"))
}

fn layer_error(error: LayerError) -> PyErr {
    match error {
        LayerError::Engine(error) => refused(error),
        error => PyValueError::new_err(error.to_string()),
    }
}
