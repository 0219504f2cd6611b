//! Rules for requests. Their functions are called in JavaScript, before a request is judged.

use earrrl::Cost;
use earrrl_tower::key::{self, Key, KeyBuffer};
use earrrl_tower::{ClientAddress, Missing, RequestRule};
use http::HeaderName;
use http::request::Parts;
use http::response;
use napi::ValueType;
use napi::bindgen_prelude::Unknown;

use crate::input::{self, RuleOptions, invalid};
use crate::rate_limits::status;
use crate::value::{self, Options, shown_text, wrong};

/// A rule, as `lib/index.cjs` passes it.
pub(crate) struct LayerRule {
    name: String,
    limit: String,
    /// The parts of the key; `None` for one that a function returns.
    key: Vec<Option<String>>,
    missing: Missing,
    /// The cost of a request, unless a function returns it.
    cost: Cost,
    /// True if a function returns the cost that a response adds.
    has_cost_after: bool,
    /// True if the handler gets a handle for later costs.
    is_settled: bool,
    /// The names and limits of the plans.
    plans: Vec<(String, String)>,
    options: RuleOptions,
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
    /// Reads the results of the functions of all rules.
    ///
    /// # Errors
    /// Returns an error for a key or a cost that is none.
    pub(crate) fn read(answers: Vec<Unknown<'_>>) -> napi::Result<Self> {
        answers
            .into_iter()
            .map(Answers::read)
            .collect::<napi::Result<_>>()
            .map(Self)
    }
}

impl Answers {
    fn read(answers: Unknown<'_>) -> napi::Result<Self> {
        let answers = Options::new("answers", answers)?;
        let text_or_none = |_: &str, value| value::optional("key", value, value::text);
        let place = input::whole(0..=u32::MAX);
        Ok(Self {
            exempt: answers.required("exempt", value::flag)?,
            keys: answers.required("keys", |name, keys| value::list(name, keys, text_or_none))?,
            plan: answers.get("plan", place)?.map(|place| place as usize),
            cost: answers.get("cost", input::cost)?,
        })
    }
}

/// The costs by the response of all rules, among a response's extensions.
#[derive(Clone)]
pub(crate) struct CostsAfter(pub(crate) Vec<Cost>);

impl LayerRule {
    /// The options of a rule, as users and `lib/index.cjs` know them.
    pub(crate) const OPTIONS: [&str; 11] = [
        "name",
        "limit",
        "key",
        "missing",
        "cost",
        "costAfter",
        "settled",
        "plans",
        "action",
        "maxDelay",
        "maxCost",
    ];

    /// Reads a rule.
    ///
    /// # Errors
    /// Returns an error with the name of the wrong option.
    pub(crate) fn read(rule: Options<'_>) -> napi::Result<Self> {
        let part_of_key = |name: &str, value| value::optional(name, value, value::text);
        Ok(Self {
            name: rule.required("name", value::text)?,
            limit: rule.required("limit", value::rule)?,
            key: rule.required("key", |name, key| value::list(name, key, part_of_key))?,
            missing: rule.get("missing", missing)?.unwrap_or(Missing::Shared),
            cost: rule.get("cost", input::cost)?.unwrap_or(Cost::ONE),
            has_cost_after: rule.required("costAfter", value::flag)?,
            is_settled: rule.get("settled", value::flag)? == Some(true),
            plans: rule.required("plans", |name, plans| value::list(name, plans, plan))?,
            options: RuleOptions::read(&rule)?,
        })
    }

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
        let limit = self.options.rule(&self.limit)?;
        let fixed = self.cost;
        let key = layer_key(&self.key, place, address, headers)?;
        let mut rule = RequestRule::new(self.name, limit, key)
            .missing(self.missing)
            .exempt(move |request| answers(request, place).is_some_and(|own| own.exempt))
            .cost_by(move |request| {
                answers(request, place)
                    .and_then(|own| own.cost)
                    .unwrap_or(fixed)
            });
        if self.has_cost_after {
            rule = rule.cost_after(move |response: &response::Parts| {
                let costs = response.extensions.get::<CostsAfter>();
                costs
                    .and_then(|costs| costs.0.get(place).copied())
                    .unwrap_or_default()
            });
        }
        for (nth, (name, limit)) in self.plans.into_iter().enumerate() {
            rule = rule.plan(name, self.options.rule(&limit)?, move |request| {
                answers(request, place).is_some_and(|own| own.plan == Some(nth))
            });
        }
        Ok(if self.is_settled {
            rule.settled()
        } else {
            rule
        })
    }
}

/// Returns the name and the limit of a plan.
fn plan(name: &str, plan: Unknown<'_>) -> napi::Result<(String, String)> {
    let plan = Options::new(name, plan)?;
    Ok((
        plan.required("name", value::text)?,
        plan.required("limit", value::rule)?,
    ))
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
            None => Box::new(AnsweredKey {
                place,
                function: functions.next().unwrap_or_default(),
            }),
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
            let wrong = |_| {
                invalid(format!(
                    "key: {} is not the name of a header",
                    shown_text(name)
                ))
            };
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
            return Err(invalid(format!(
                "key: {} is not {expected}",
                shown_text(text)
            )));
        }
    })
}

fn missing(name: &str, value: Unknown<'_>) -> napi::Result<Missing> {
    let is_number = value.get_type()? == ValueType::Number;
    if is_number && let Ok(status) = status(name, value) {
        return Ok(Missing::Deny(status));
    }
    match value::text(name, value).as_deref() {
        Ok("share") => Ok(Missing::Shared),
        Ok("skip") => Ok(Missing::Skip),
        _ => Err(wrong(
            name,
            value,
            "\"share\", \"skip\", or a status from 400 to 999",
        )),
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
