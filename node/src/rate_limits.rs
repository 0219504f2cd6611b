//! The rules of a service, and the treatment of its requests: what every middleware asks.

use std::net::IpAddr;

use bytes::Bytes;
use earrrl::{Charge, Engine as _, MemoryEngine, RuleId};
use earrrl_tower::headers::Available;
use earrrl_tower::{
    AddressSource, ClientAddress, Judged, LayerError, Passed, PeerAddress, Prefixes,
    RateLimitLayer, Settlement, Verdict, bounded_key,
};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use napi::Env;
use napi::bindgen_prelude::{Float64Array, ObjectFinalize, Unknown};
use napi_derive::napi;

use crate::figures::{self, Client, Figures};
use crate::input::{self, Key, StoreMemory, bytes, cost_or_one, invalid, whole};
use crate::request_rule::{AllAnswers, CostsAfter, LayerRule};
use crate::value::{self, Options, optional, shown_text};

/// The rules of a service; `lib/index.cjs` has its interface.
#[napi(custom_finalize)]
pub struct NativeLimits {
    layer: RateLimitLayer<MemoryEngine>,
    headers: Vec<String>,
    figures: Figures,
    memory: StoreMemory,
}

impl ObjectFinalize for NativeLimits {
    fn finalize(self, env: Env) -> napi::Result<()> {
        self.memory.free(&env)
    }
}

/// The options of [`NativeLimits`].
const OPTIONS: [&str; 12] = [
    "source",
    "ipv4Prefix",
    "ipv6Prefix",
    "hops",
    "trustedProxies",
    "path",
    "capacity",
    "status",
    "maxHeld",
    "headersOnAllowed",
    "xRateLimit",
    "alwaysVerdict",
];

#[napi]
impl NativeLimits {
    /// Builds the layer, which writes decisions into an array.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        rules: Vec<Unknown<'_>>,
        options: Unknown<'_>,
        figures: Float64Array,
    ) -> napi::Result<Self> {
        let options = Options::of("options", options, &OPTIONS)?;
        let address = client_address(&options)?;
        let path = options.get("path", value::text)?;
        let capacity = input::capacity(&options)?;
        let status = options
            .get("status", status)?
            .unwrap_or(StatusCode::TOO_MANY_REQUESTS);
        let held = options.get("maxHeld", whole(0..=u32::MAX))?.unwrap_or(1000);
        let flag =
            |name, usual| Ok::<_, napi::Error>(options.get(name, value::flag)?.unwrap_or(usual));
        let allowed = flag("headersOnAllowed", true)?;
        let older = flag("xRateLimit", false)?;
        let verdict = flag("alwaysVerdict", false)?;
        let mut builder = RateLimitLayer::builder(input::engine(path, capacity)?)
            .status(status)
            .headers_on_allowed(allowed)
            .x_rate_limit(older)
            .always_verdict(verdict)
            .max_held(held as usize);
        // Calls over gRPC are recognised by their type.
        let mut headers = vec!["content-type".to_owned()];
        for (place, rule) in rules.into_iter().enumerate() {
            let rule = LayerRule::read(Options::of("rules", rule, &LayerRule::OPTIONS)?)?;
            builder = builder.rule(rule.for_layer(place, &address, &mut headers)?);
        }
        let layer = builder.build().map_err(layer_error)?;
        let stores = layer.engine().rules().len();
        let memory = StoreMemory::reserve(&env, capacity, stores)?;
        Ok(Self {
            layer,
            headers,
            figures: Figures::new(figures),
            memory,
        })
    }

    /// The rules that had another algorithm in their files before, each with its limit of then.
    #[napi(getter)]
    pub fn superseded(&self) -> Vec<String> {
        let superseded = self.layer.engine().superseded().into_iter();
        superseded
            .map(|(name, before)| format!("rule {name}: `{before}`"))
            .collect()
    }

    /// Judges a request. `headers` has a name and a value for each header that is read; `answers` has the results
    /// of the functions of each rule.
    #[napi]
    pub fn judge(
        &self,
        method: Unknown<'_>,
        target: Unknown<'_>,
        headers: Vec<String>,
        peer: Unknown<'_>,
        answers: Option<Vec<Unknown<'_>>>,
    ) -> napi::Result<NativeJudged> {
        let mut parts = Request::new(()).into_parts().0;
        parts.method = value::text("method", method)?.parse().unwrap_or_default();
        parts.uri = value::text("target", target)?.parse().unwrap_or_default();
        let peer = optional("peer", peer, value::text)?;
        if let Some(address) = peer.and_then(|peer| peer.parse::<IpAddr>().ok()) {
            parts.extensions.insert(PeerAddress(address));
        }
        add_headers(&headers, &mut parts.headers);
        if let Some(answers) = answers {
            parts.extensions.insert(AllAnswers::read(answers)?);
        }
        match self.layer.judge(&parts) {
            Judged::Pass(passed) => Ok(NativeJudged {
                passed: Some(passed),
                refusal: None,
            }),
            Judged::Refuse(response) => Ok(NativeJudged {
                passed: None,
                refusal: Some(response),
            }),
            _ => Err(invalid("an unknown treatment of the request")),
        }
    }

    /// The names of the headers that the rules read, in lower case.
    #[napi(getter)]
    pub fn headers(&self) -> Vec<String> {
        self.headers.clone()
    }

    /// Changes the limit of a rule or plan while requests go on.
    #[napi]
    pub fn change(&self, name: Unknown<'_>, limit: Unknown<'_>) -> napi::Result<()> {
        let name = value::text("name", name)?;
        let limit = value::rule("limit", limit)?;
        let known = self
            .layer
            .engine()
            .prepared(&name)
            .ok_or_else(|| unknown(&name))?;
        let rule: earrrl::Rule = limit.parse().map_err(invalid)?;
        let rule = rule
            .with_max_cost(known.max_cost())
            .and_then(|r| r.with_action(known.action()));
        self.layer
            .change(&name, &rule.map_err(invalid)?)
            .map_err(layer_error)
    }

    /// Forgets a client of a rule or plan.
    #[napi]
    pub fn reset(&self, name: Unknown<'_>, key: Key<'_>) -> napi::Result<()> {
        let key = bounded_key(bytes(&key));
        self.layer
            .engine()
            .reset(self.id(name)?, &key)
            .into_inner()
            .map_err(invalid)
    }

    /// Takes back one request of a client under a rule or plan.
    #[napi]
    pub fn refund(&self, name: Unknown<'_>, key: Key<'_>, cost: Unknown<'_>) -> napi::Result<()> {
        let key = bounded_key(bytes(&key));
        let charge = Charge {
            rule: self.id(name)?,
            key: &key,
            cost: cost_or_one(cost)?,
        };
        self.layer
            .engine()
            .refund(&charge, None, None)
            .into_inner()
            .map_err(invalid)
    }

    /// Returns the clients of a rule or plan with the highest rates, the highest first.
    #[napi]
    pub fn top(&self, name: Unknown<'_>, count: Unknown<'_>) -> napi::Result<Vec<Client>> {
        let top = self
            .layer
            .engine()
            .top(self.id(name)?, input::count(count)?);
        Ok(top
            .map_err(invalid)?
            .into_iter()
            .map(Client::from)
            .collect())
    }

    /// Returns the number by which `top` reports a key.
    #[napi]
    pub fn fingerprint(&self, key: Key<'_>) -> f64 {
        self.layer
            .engine()
            .hash(&bounded_key(bytes(&key)))
            .fingerprint() as f64
    }

    /// Returns the header `RateLimit-Policy` of a rule.
    #[napi]
    pub fn policy_header(&self, name: String) -> Option<String> {
        figures::policy_header(&name, &self.layer.engine().prepared(&name)?)
    }

    /// Returns the header `RateLimit` of a rule, for the available units and their seconds.
    #[napi]
    pub fn limit_header(&self, name: String, units: f64, seconds: f64) -> Option<String> {
        figures::limit_header(&name, units, seconds)
    }

    /// Writes the figures of the decision about a request that is passed on, and returns its rule.
    #[napi]
    pub fn enter(&self, judged: &mut NativeJudged) -> Entered {
        let mut extensions = Extensions::new();
        if let Some(passed) = judged.passed.as_mut() {
            passed.enter(&mut extensions);
        }
        let settlement = extensions.remove::<Settlement>().map(NativeSettlement);
        let verdict = extensions.remove::<Verdict>();
        let rule = verdict.and_then(|verdict| {
            let (name, decision) = verdict.rule.zip(verdict.decision)?;
            let rule = self.layer.engine().prepared(&name)?;
            let available = Available::from_decision(&rule, &decision, decision.rule);
            self.figures.write(&decision, available);
            Some(name.to_string())
        });
        Entered { rule, settlement }
    }
}

impl NativeLimits {
    fn id(&self, name: Unknown<'_>) -> napi::Result<RuleId> {
        let name = value::text("name", name)?;
        let rules = self.layer.engine().rules();
        let place = rules.iter().position(|(known, _)| *known == name);
        place
            .map(|place| RuleId(place as u32))
            .ok_or_else(|| unknown(&name))
    }
}

/// The treatment of one request.
#[napi]
pub struct NativeJudged {
    /// Taken when the response is there.
    passed: Option<Passed>,
    refusal: Option<Response<Bytes>>,
}

/// The values for the handler of a request.
#[napi]
pub struct Entered {
    rule: Option<String>,
    settlement: Option<NativeSettlement>,
}

#[napi]
impl Entered {
    /// The rule of the decision, if there is a decision.
    #[napi(getter)]
    pub fn rule(&self) -> Option<String> {
        self.rule.clone()
    }

    /// Takes the handle that charges later costs.
    #[napi]
    pub fn settlement(&mut self) -> Option<NativeSettlement> {
        self.settlement.take()
    }
}

#[napi]
impl NativeJudged {
    /// The status of a denial; null if the request is passed on.
    #[napi(getter)]
    pub fn status(&self) -> Option<u32> {
        self.refusal
            .as_ref()
            .map(|response| response.status().as_u16().into())
    }

    /// The names and values of the headers of a denial.
    #[napi(getter)]
    pub fn headers(&self) -> Vec<String> {
        self.refusal
            .as_ref()
            .map_or_else(Vec::new, |response| flat(response.headers()))
    }

    /// The body of a denial.
    #[napi(getter)]
    pub fn body(&self) -> String {
        let body = self
            .refusal
            .as_ref()
            .map(|response| String::from_utf8_lossy(response.body()));
        body.unwrap_or_default().into_owned()
    }

    /// The milliseconds for which the request must be held back.
    #[napi(getter)]
    pub fn delay(&self) -> f64 {
        self.passed
            .as_ref()
            .map_or(0.0, |passed| passed.delay().as_secs_f64() * 1e3)
    }

    /// Charges the costs that depend on the response, and returns the headers to add to it.
    #[napi]
    pub fn leave(&mut self, costs: Option<Vec<Unknown<'_>>>) -> napi::Result<Vec<String>> {
        let costs = costs
            .unwrap_or_default()
            .into_iter()
            .map(|cost| input::cost("costAfter", cost));
        let costs = costs.collect::<napi::Result<Vec<_>>>()?;
        let mut parts = Response::new(()).into_parts().0;
        parts.extensions.insert(CostsAfter(costs));
        if let Some(passed) = self.passed.take() {
            passed.leave(&mut parts);
        }
        Ok(flat(&parts.headers))
    }
}

/// Charges costs that are known only while a request is served, or afterwards.
#[napi]
pub struct NativeSettlement(Settlement);

#[napi]
impl NativeSettlement {
    /// Charges a cost, at most the rule's greatest.
    #[napi]
    pub fn charge(&self, cost: Unknown<'_>) -> napi::Result<()> {
        // An engine in memory has charged the cost when the future is made.
        drop(self.0.charge(input::cost("cost", cost)?));
        Ok(())
    }
}

/// Returns a status of a denial.
///
/// # Errors
/// Returns an error if it is none.
pub(crate) fn status(name: &str, code: Unknown<'_>) -> napi::Result<StatusCode> {
    let code = whole(400..=999)(name, code)?;
    StatusCode::from_u16(code as u16).map_err(|error| invalid(format!("{name}: {error}")))
}

/// Adds headers, whose values have a character for each byte, as Node has them.
fn add_headers(pairs: &[String], to: &mut HeaderMap) {
    for pair in pairs.chunks_exact(2) {
        let value: Option<Vec<u8>> = pair[1].chars().map(|c| u8::try_from(c).ok()).collect();
        let value = value.and_then(|value| HeaderValue::from_bytes(&value).ok());
        if let (Ok(name), Some(value)) = (HeaderName::from_bytes(pair[0].as_bytes()), value) {
            // More headers than the map takes are of no use to a rule.
            let _ = to.try_append(name, value);
        }
    }
}

fn flat(headers: &HeaderMap) -> Vec<String> {
    let texts = |(name, value): (&HeaderName, &HeaderValue)| {
        [
            name.to_string(),
            value.to_str().unwrap_or_default().to_owned(),
        ]
    };
    headers.iter().flat_map(texts).collect()
}

fn client_address(options: &Options<'_>) -> napi::Result<ClientAddress> {
    let source = options
        .get("source", source)?
        .unwrap_or(AddressSource::XForwardedFor);
    let ipv4 = options.get("ipv4Prefix", whole(0..=32))?.unwrap_or(32) as u8;
    let ipv6 = options.get("ipv6Prefix", whole(0..=128))?.unwrap_or(64) as u8;
    let hops = options.get("hops", whole(0..=u32::MAX))?.unwrap_or(0) as usize;
    let networks = |name: &str, value| value::list(name, value, network);
    let proxies = options.get("trustedProxies", networks)?.unwrap_or_default();
    let address = ClientAddress::default()
        .hops(hops)
        .source(source)
        .prefixes(Prefixes::new(ipv4, ipv6));
    let address = proxies.into_iter().fold(address, ClientAddress::trust);
    let spelled = |error: String| invalid(error.replace("trusted_proxies", "trustedProxies"));
    address.validate().map_err(spelled)?;
    Ok(address)
}

fn source(name: &str, value: Unknown<'_>) -> napi::Result<AddressSource> {
    let text = value::text(name, value)?;
    if text.eq_ignore_ascii_case("x-forwarded-for") {
        return Ok(AddressSource::XForwardedFor);
    }
    if text.eq_ignore_ascii_case("forwarded") {
        return Ok(AddressSource::Forwarded);
    }
    let wrong = |_| {
        invalid(format!(
            "{name}: {} is not the name of a header",
            shown_text(&text)
        ))
    };
    Ok(AddressSource::Header(text.parse().map_err(wrong)?))
}

fn network(name: &str, value: Unknown<'_>) -> napi::Result<ipnet::IpNet> {
    let text = value::text(name, value)?;
    let address = || text.parse::<IpAddr>().ok().map(ipnet::IpNet::from);
    text.parse().ok().or_else(address).ok_or_else(|| {
        invalid(format!(
            "{name}: {} is not a network such as 10.0.0.0/8",
            shown_text(&text)
        ))
    })
}

fn unknown(name: &str) -> napi::Error {
    invalid(format!(
        "neither a rule nor a plan is called {}",
        shown_text(name)
    ))
}

fn layer_error(error: LayerError) -> napi::Error {
    invalid(error)
}
