//! Rules for requests. Their functions are called in JavaScript, before a request is judged.

use earrrl::{Cost, Rule};
use earrrl_tower::key::{self, Key, KeyBuffer};
use earrrl_tower::{ClientAddress, Missing, RequestRule};
use http::HeaderName;
use http::request::Parts;
use http::response;
use napi::bindgen_prelude::Either;
use napi_derive::napi;

use crate::input::{self, LimiterOptions, invalid};
use crate::rate_limits::status;

/// The options of a rule, as `lib/index.cjs` passes them.
#[napi(object)]
pub struct RuleOptions {
    /// The name of the rule.
    pub name: String,
    /// The text of the rule.
    pub limit: String,
    /// The parts of the key; null for one that a function returns.
    pub key: Vec<Option<String>>,
    /// The cost of a request, unless a function returns it.
    pub cost: Option<f64>,
    /// True if a function returns the cost that a response adds.
    pub has_cost_after: bool,
    /// True if the handler gets a handle for later costs.
    pub settled: Option<bool>,
    /// The treatment of requests without a key.
    pub missing: Option<Either<String, f64>>,
    /// The names and limits of the plans.
    pub plans: Vec<Vec<String>>,
    /// The treatment of requests over the limit.
    pub action: Option<String>,
    /// The longest delay in milliseconds, for the action `delay`.
    pub max_delay: Option<f64>,
    /// The greatest cost of a request.
    pub max_cost: Option<f64>,
}

/// The results of a rule's functions for one request.
#[napi(object)]
pub struct RuleAnswers {
    /// True if the rule does not apply.
    pub exempt: bool,
    /// The keys that functions returned, in their order.
    pub keys: Vec<Option<String>>,
    /// The place of the plan that applies.
    pub plan: Option<u32>,
    /// The cost that a function returned.
    pub cost: Option<f64>,
}

/// The answers of one rule, with a cost that was checked.
#[derive(Clone)]
struct Answers {
    exempt: bool,
    keys: Vec<Option<String>>,
    plan: Option<usize>,
    cost: Option<Cost>,
}

/// The answers of all rules, among a request's extensions.
#[derive(Clone)]
pub(crate) struct AllAnswers(Vec<Answers>);

impl AllAnswers {
    /// Reads the answers.
    ///
    /// # Errors
    /// Returns an error for a cost that is none.
    pub(crate) fn read(answers: Vec<RuleAnswers>) -> napi::Result<Self> {
        let read = |own: RuleAnswers| {
            let cost = own.cost.map(|cost| input::cost(Some(cost))).transpose()?;
            let plan = own.plan.map(|plan| plan as usize);
            Ok(Answers { exempt: own.exempt, keys: own.keys, plan, cost })
        };
        answers.into_iter().map(read).collect::<napi::Result<_>>().map(Self)
    }
}

/// The costs by the response of all rules, among a response's extensions.
#[derive(Clone)]
pub(crate) struct CostsAfter(pub(crate) Vec<Cost>);

impl RuleOptions {
    /// Returns the rule as the layer takes it, and adds the names of the headers that it reads.
    /// `place` is its place among the rules of the layer.
    ///
    /// # Errors
    /// Returns an error with the library's message.
    pub(crate) fn for_layer(
        self,
        place: usize,
        address: &ClientAddress,
        headers: &mut Vec<String>,
    ) -> napi::Result<RequestRule> {
        let limit = self.rule(&self.limit)?;
        let fixed = input::cost(self.cost)?;
        let key = layer_key(&self.key, place, address, headers)?;
        let mut rule = RequestRule::new(self.name.clone(), limit, key)
            .missing(missing(self.missing.as_ref())?)
            .exempt(move |request| answers(request, place).is_some_and(|own| own.exempt))
            .cost_by(move |request| {
                answers(request, place).and_then(|own| own.cost).unwrap_or(fixed)
            });
        if self.has_cost_after {
            rule = rule.cost_after(move |response: &response::Parts| {
                let costs = response.extensions.get::<CostsAfter>();
                costs.and_then(|costs| costs.0.get(place).copied()).unwrap_or_default()
            });
        }
        for (nth, plan) in self.plans.iter().enumerate() {
            let [name, limit] = &**plan else { return Err(invalid("plans: a name and a limit")) };
            rule = rule.plan(name.clone(), self.rule(limit)?, move |request| {
                answers(request, place).is_some_and(|own| own.plan == Some(nth))
            });
        }
        Ok(if self.settled == Some(true) { rule.settled() } else { rule })
    }

    fn rule(&self, text: &str) -> napi::Result<Rule> {
        let options = LimiterOptions {
            path: None,
            capacity: None,
            action: self.action.clone(),
            max_delay: self.max_delay,
            max_cost: self.max_cost,
            name: None,
        };
        input::rule(text, &options)
    }
}

fn layer_key(
    parts: &[Option<String>],
    place: usize,
    address: &ClientAddress,
    headers: &mut Vec<String>,
) -> napi::Result<Box<dyn Key>> {
    let mut functions = 0..;
    let mut keys = Vec::with_capacity(parts.len());
    for part in parts {
        keys.push(match part {
            None => Box::new(AnsweredKey { place, function: functions.next().unwrap_or_default() }),
            Some(text) => named_key(text, address, headers)?,
        });
    }
    match keys.len() {
        0 => Err(invalid("key: an empty list; expected at least one part")),
        1 => Ok(keys.remove(0)),
        _ => Ok(Box::new(keys)),
    }
}

fn named_key(
    text: &str,
    address: &ClientAddress,
    headers: &mut Vec<String>,
) -> napi::Result<Box<dyn Key>> {
    Ok(match (text, text.split_once(':')) {
        ("client", _) => {
            if address.believes_proxies() {
                headers.push(address.header().to_owned());
            }
            Box::new(address.clone())
        }
        ("everyone", _) => Box::new(key::Everyone),
        ("method", _) => Box::new(key::Method),
        ("path", _) => Box::new(key::by(|request| Some(request.uri.path().to_owned()))),
        (_, Some(("header", name))) => {
            let wrong = |_| invalid(format!("key: {name:?} is not the name of a header"));
            let name: HeaderName = name.parse().map_err(wrong)?;
            headers.push(name.as_str().to_owned());
            Box::new(key::header(name))
        }
        (_, Some(("cookie", name))) => {
            headers.push("cookie".to_owned());
            Box::new(key::cookie(name.to_owned()))
        }
        _ => {
            let expected = "client, everyone, method, path, header:NAME or cookie:NAME";
            return Err(invalid(format!("key: {text:?} is not {expected}")));
        }
    })
}

fn missing(missing: Option<&Either<String, f64>>) -> napi::Result<Missing> {
    match missing {
        None => Ok(Missing::Shared),
        Some(Either::A(text)) if text == "share" => Ok(Missing::Shared),
        Some(Either::A(text)) if text == "skip" => Ok(Missing::Skip),
        Some(Either::B(code)) => status("missing", *code).map(Missing::Deny),
        Some(Either::A(_)) => {
            Err(invalid("missing: expected share, skip, or a status from 400 to 999"))
        }
    }
}

/// Returns the answers of the rule at a place of the layer.
fn answers(request: &Parts, place: usize) -> Option<&Answers> {
    request.extensions.get::<AllAnswers>()?.0.get(place)
}

/// A key that a function returned.
struct AnsweredKey {
    /// The place of the rule in the layer.
    place: usize,
    /// The place of the function among those of the rule's key.
    function: usize,
}

impl Key for AnsweredKey {
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        let text =
            answers(request, self.place).and_then(|own| own.keys.get(self.function)?.as_deref());
        text.inspect(|text| key.push(text.as_bytes())).is_some()
    }
}
