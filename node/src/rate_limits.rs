//! The rules of a service, and the treatment of its requests: what every middleware asks.

use std::rc::Rc;

use bytes::Bytes;
use earrrl::Rule;
use earrrl_bindings::{LimitsOptions, RateLimits, RequestHead, Target, enter, leave};
use earrrl_tower::headers::Available;
use earrrl_tower::{Judged, Passed, RequestAttribute, Settlement};
use http::{HeaderMap, HeaderValue, Response};
use napi::Env;
use napi::bindgen_prelude::{
    Either, Float64Array, Function, FunctionCallContext, ObjectFinalize, Unknown,
};
use napi_derive::napi;

use crate::clock::{self, TestClock, Timed};
use crate::figures::{self, Figures};
use crate::input::{self, Key, StoreMemory, bytes, cost_or_one, whole};
use crate::request_rule::{self, read_answers, read_rule};
use crate::value::{self, Options, failed, invalid, optional};

/// The rules of a service; `lib/rate_limits.cjs` has its interface.
#[napi(custom_finalize)]
pub struct NativeLimits {
    limits: Rc<Timed<RateLimits>>,
    figures: Rc<Figures>,
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
    "headersOnAllowed",
    "xRateLimit",
    "alwaysVerdict",
    "clock",
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
        let clock = clock::of(&env, &options)?;
        let options = LimitsOptions {
            clock: clock.as_ref().map(TestClock::shared),
            ..read_options(&options)?
        };
        let capacity = options.capacity;
        let read = |rule| read_rule(&Options::of("rules", rule, &request_rule::OPTIONS)?);
        let rules = rules
            .into_iter()
            .map(read)
            .collect::<napi::Result<Vec<_>>>()?;
        let limits = RateLimits::new(&rules, options).map_err(failed)?;
        let memory = StoreMemory::reserve(&env, capacity, limits.names().len())?;
        Ok(Self {
            limits: Rc::new(Timed::new(limits, clock)),
            figures: Rc::new(Figures::new(figures)),
            memory,
        })
    }

    /// The warnings about rules that begin afresh, or keep another capacity.
    #[napi(getter)]
    pub fn warnings(&self) -> Vec<String> {
        self.limits.warnings()
    }

    /// Returns the function that judges a request, of the arguments of [`judge`]. A function finds its limits in much
    /// less time than a method does.
    #[napi]
    pub fn judge<'a>(&self, env: &'a Env) -> napi::Result<Function<'a, (), Treatment>> {
        let limits = Rc::clone(&self.limits);
        let figures = Rc::clone(&self.figures);
        env.create_function_from_closure("judge", move |call| judge(&call, &limits, &figures))
    }

    /// The names of the headers that the rules read, in lower case.
    #[napi(getter)]
    pub fn headers(&self) -> Vec<String> {
        let names = self.limits.headers().iter();
        names.map(ToString::to_string).collect()
    }

    /// True if a rule reads the target of the request.
    #[napi(getter)]
    pub fn reads_target(&self) -> bool {
        self.limits.reads(&RequestAttribute::Path)
    }

    /// True if a rule reads the route of the framework.
    #[napi(getter)]
    pub fn reads_route(&self) -> bool {
        self.limits.reads(&RequestAttribute::Route)
    }

    /// Changes the limit of a rule or plan while requests go on.
    #[napi]
    pub fn change(&self, name: Unknown<'_>, limit: Unknown<'_>) -> napi::Result<()> {
        let name = value::text("name", name)?;
        let limit = value::rule("limit", limit)?;
        self.limits.change(&name, &limit).map_err(failed)
    }

    /// Forgets a client of a rule or plan.
    #[napi]
    pub fn reset(&self, name: Unknown<'_>, key: Key<'_>) -> napi::Result<()> {
        let name = value::text("name", name)?;
        self.limits.reset(&name, bytes(&key)).map_err(failed)
    }

    /// Takes back one request of a client under a rule or plan.
    #[napi]
    pub fn refund(
        &self,
        env: Env,
        name: Unknown<'_>,
        key: Key<'_>,
        cost: Unknown<'_>,
    ) -> napi::Result<()> {
        let name = value::text("name", name)?;
        let cost = cost_or_one(cost)?;
        let limits = self.limits.now(clock::date(&env))?;
        limits.refund(&name, bytes(&key), cost).map_err(failed)
    }

    /// Writes the figures of the decision about a request that is passed on, and returns its rule.
    #[napi]
    pub fn enter(&self, judged: &mut NativeJudged) -> Entered {
        let (verdict, settlement) = judged.0.as_mut().map(enter).unwrap_or_default();
        let visit = verdict.and_then(|verdict| self.limits.visit(verdict));
        let rule = visit.map(|visit| {
            let decision = visit.decision;
            let available = Available::from_decision(&visit.rule, &decision, decision.rule);
            self.figures.write(&decision, available);
            (visit.name, visit.rule)
        });
        Entered {
            rule,
            settlement: settlement.map(NativeSettlement),
        }
    }
}

/// The treatment of a request: the values of headers that a request adds which is passed on, as [`lines`]; the
/// [`response`] of one that is not; or the handle of one that is passed on, and for which more is to be done.
type Treatment = Either<String, NativeJudged>;

/// Judges a request: its method, its target, a name and a value for each header that is read, the connection's address,
/// the results of the functions of each rule if a rule has functions, and the route. Writes the status of a denial, or 0,
/// and the milliseconds for which the request must be held back. Few requests get an object, since making one would take
/// longer than the decision.
fn judge(
    call: &FunctionCallContext<'_>,
    limits: &Timed<RateLimits>,
    figures: &Figures,
) -> napi::Result<Treatment> {
    let reads = |attribute| limits.reads(&attribute);
    let method = value::text_if(reads(RequestAttribute::Method), "method", call.get(0)?)?;
    let target = value::text_if(reads(RequestAttribute::Path), "target", call.get(1)?)?;
    let headers = call.get::<Option<Vec<String>>>(2)?;
    let peer = optional("peer", call.get(3)?, value::text)?;
    let answers = call.get::<Option<Vec<Unknown<'_>>>>(4)?;
    let answers = answers.into_iter().flatten().map(read_answers);
    let head = RequestHead {
        method: &method,
        target: Target::Sent(target.as_bytes()),
        below: None,
        peer: peer.as_deref(),
        route: optional("route", call.get(5)?, value::text)?,
        headers: read_headers(limits, headers.as_deref().unwrap_or_default()),
        answers: answers.collect::<napi::Result<_>>()?,
    };
    match limits
        .now(clock::date(call.env))?
        .judge(head)
        .map_err(failed)?
    {
        Judged::Pass(passed) => {
            figures.set([0.0, passed.delay().as_secs_f64() * 1e3]);
            Ok(if passed.is_plain() {
                Either::A(lines(passed))
            } else {
                Either::B(NativeJudged(Some(passed)))
            })
        }
        Judged::Refuse(refusal) => {
            figures.set([refusal.status().as_u16().into(), 0.0]);
            Ok(Either::A(response(&refusal)))
        }
        _ => Err(invalid("an unknown treatment of the request")),
    }
}

/// Returns the headers of a list of names and values in turn. Each character of a value stands for one byte, as in
/// Node.
fn read_headers(limits: &RateLimits, pairs: &[String]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for pair in pairs.chunks_exact(2) {
        let value: Option<Vec<u8>> = pair[1].chars().map(|c| u8::try_from(c).ok()).collect();
        if let Some(value) = value {
            limits.add_header(&mut headers, pair[0].as_bytes(), &value);
        }
    }
    headers
}

fn read_options(options: &Options<'_>) -> napi::Result<LimitsOptions> {
    let usual = LimitsOptions::default();
    let flag = |name, usual| Ok::<_, napi::Error>(options.get(name, value::flag)?.unwrap_or(usual));
    let number = |name, range, usual| {
        let number = options.get(name, whole(range))?;
        Ok::<_, napi::Error>(number.unwrap_or(usual))
    };
    let proxies = |name: &str, proxies| value::list(name, proxies, value::text);
    Ok(LimitsOptions {
        path: options.get("path", value::text)?.map(Into::into),
        capacity: input::capacity(options)?,
        trusted_proxies: options.get("trustedProxies", proxies)?.unwrap_or_default(),
        hops: number("hops", 0..=u32::MAX, 0)? as usize,
        source: options.get("source", value::text)?.unwrap_or(usual.source),
        ipv4_prefix: number("ipv4Prefix", 0..=32, usual.ipv4_prefix)?,
        ipv6_prefix: number("ipv6Prefix", 0..=128, usual.ipv6_prefix)?,
        status: number("status", 400..=999, usual.status.into())? as u16,
        headers_on_allowed: flag("headersOnAllowed", usual.headers_on_allowed)?,
        x_rate_limit: flag("xRateLimit", usual.x_rate_limit)?,
        always_verdict: flag("alwaysVerdict", usual.always_verdict)?,
        ..usual
    })
}

/// A request that is passed on. The value is taken when the response is there.
#[napi]
pub struct NativeJudged(Option<Passed>);

/// The values for the handler of a request.
#[napi]
pub struct Entered {
    rule: Option<(String, Rule)>,
    settlement: Option<NativeSettlement>,
}

#[napi]
impl Entered {
    /// The rule of the decision, if there is a decision.
    #[napi(getter)]
    pub fn rule(&self) -> Option<String> {
        self.rule.as_ref().map(|(name, _)| name.clone())
    }

    /// Returns the header `RateLimit-Policy` of the rule.
    #[napi]
    pub fn policy_header(&self, name: String) -> Option<String> {
        let (_, rule) = self.rule.as_ref()?;
        earrrl_bindings::policy_header(&name, rule)
    }

    /// Returns the header `RateLimit` of the rule, for the available units and their seconds.
    #[napi]
    pub fn limit_header(&self, name: String, units: f64, seconds: f64) -> Option<String> {
        figures::limit_header(&name, units, seconds)
    }

    /// Takes the handle that charges later costs.
    #[napi]
    pub fn settlement(&mut self) -> Option<NativeSettlement> {
        self.settlement.take()
    }
}

#[napi]
impl NativeJudged {
    /// Charges the costs that depend on the response, and returns the headers to add to it.
    #[napi]
    pub fn leave(&mut self, costs: Option<Vec<Unknown<'_>>>) -> napi::Result<Vec<String>> {
        let costs = costs.unwrap_or_default().into_iter();
        let costs = costs.map(|cost| input::cost("costAfter", cost));
        let costs = costs.collect::<napi::Result<Vec<_>>>()?;
        let added = self.0.take().map(|passed| leave(passed, costs));
        Ok(flat(&added.unwrap_or_default()))
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

/// The headers of [`lines`], in the order of `lib/rate_limits.cjs`. A response has the first of them.
const HEADERS: [&str; 5] = [
    "ratelimit",
    "ratelimit-policy",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
];

/// Returns the values of the headers that a request adds to its response, as the lines of one text: a string for each
/// would take longer.
fn lines(passed: Passed) -> String {
    if let Some(values) = passed.rate_limit() {
        return joined(values.into_iter().flatten());
    }
    let headers = leave(passed, Vec::new());
    joined(HEADERS.iter().filter_map(|name| headers.get(*name)))
}

/// Returns a response as lines: the name and the value of each header, an empty line, and the body.
fn response(response: &Response<Bytes>) -> String {
    let headers = flat(response.headers()).join("\n");
    let body = String::from_utf8_lossy(response.body());
    format!("{headers}\n\n{body}")
}

fn joined<'a>(values: impl Iterator<Item = &'a HeaderValue>) -> String {
    let mut text = String::with_capacity(128);
    for value in values {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(value.to_str().unwrap_or_default());
    }
    text
}

/// Returns the names and values of headers.
fn flat(headers: &HeaderMap) -> Vec<String> {
    let mut texts = Vec::with_capacity(2 * headers.len());
    for (name, value) in headers {
        texts.push(name.to_string());
        texts.push(value.to_str().unwrap_or_default().to_owned());
    }
    texts
}
