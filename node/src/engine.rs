//! Several rules in one decision.

use std::iter::zip;
use std::rc::Rc;

use earrrl::{Charge, Cost, Engine as _, Mode, Rule, RuleId};
use earrrl_tower::headers::Available;
use napi::Env;
use napi::bindgen_prelude::{Float64Array, FromNapiValue as _, Function, ObjectFinalize, Unknown};
use napi_derive::napi;

use crate::clock::{self, TestClock, Timed};
use crate::figures::{self, Figures};
use crate::input::{self, Key, StoreMemory, bytes, cost};
use crate::value::{self, Options, failed, invalid, optional, shown_text};

/// Decides requests under several named rules; `lib/limiter.cjs` has its interface.
#[napi(custom_finalize)]
pub struct NativeEngine {
    own: Rc<Own>,
    memory: StoreMemory,
}

/// The engine with its rules, and the array for its decisions.
struct Own {
    engine: Timed<earrrl_bindings::Engine>,
    rules: Vec<NamedRule>,
    figures: Figures,
}

impl ObjectFinalize for NativeEngine {
    fn finalize(self, env: Env) -> napi::Result<()> {
        self.memory.free(&env)
    }
}

struct NamedRule {
    id: RuleId,
    name: String,
    rule: Rule,
}

/// A part of a request: the place of a rule, the client's key, and the cost.
type Part<'a> = (usize, Key<'a>, Cost);

#[napi]
impl NativeEngine {
    /// Builds an engine with rules of these names and texts, which writes its decisions into an array.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        names: Vec<String>,
        texts: Vec<Unknown<'_>>,
        options: Unknown<'_>,
        figures: Float64Array,
    ) -> napi::Result<Self> {
        let parse = |(name, text): (String, Unknown<'_>)| {
            let rule = value::rule(&name, text)?.parse::<Rule>();
            Ok((rule.map_err(|error| invalid(error.of(&name)))?, name))
        };
        let read = zip(names, texts)
            .map(parse)
            .collect::<napi::Result<Vec<_>>>()?;
        let options = Options::of("options", options, &["path", "capacity", "clock"])?;
        let path = options.get("path", value::text)?;
        let capacity = input::capacity(&options)?;
        let clock = clock::of(&env, &options)?;
        let shared = clock.as_ref().map(TestClock::shared);
        let engine = earrrl_bindings::engine(path.map(Into::into), capacity, shared);
        let engine = engine.map_err(failed)?;
        let prepare = |(rule, name): (Rule, String)| {
            let id = engine.prepare(&name, &rule).map_err(invalid)?;
            Ok(NamedRule { id, name, rule })
        };
        let rules = read
            .into_iter()
            .map(prepare)
            .collect::<napi::Result<Vec<_>>>()?;
        let memory = StoreMemory::reserve(&env, capacity, rules.len())?;
        Ok(Self {
            own: Rc::new(Own {
                engine: Timed::new(engine, clock),
                rules,
                figures: Figures::new(figures),
            }),
            memory,
        })
    }

    /// Returns the function that decides a request: of a mode, and of the place of a rule, a key and a cost for
    /// each charge. It returns the place of the deciding rule.
    #[napi]
    pub fn decider<'a>(&self, env: &'a Env) -> napi::Result<Function<'a, (), u32>> {
        let own = Rc::clone(&self.own);
        env.create_function_from_closure("decide", move |call| {
            let arguments = call.arguments::<Unknown<'_>>()?;
            let mode = figures::mode(call.get(0)?);
            let parts = arguments.get(1..);
            own.decide(call.env, mode, &parts_of(parts.unwrap_or_default())?)
        })
    }

    /// Takes back a request that was counted at an instant, in nanoseconds since the epoch. `parts` has the place
    /// of a rule, a key and a cost for each charge.
    #[napi]
    pub fn refund(&self, env: Env, parts: Vec<Unknown<'_>>, at: Unknown<'_>) -> napi::Result<()> {
        let at = optional("at", at, input::instant)?;
        let parts = parts_of(&parts)?;
        let charges = self.own.charges(&parts);
        let engine = self.own.engine.now(clock::date(&env))?;
        let refund = |charge: &Charge<'_>| engine.refund(charge, at, None).into_inner();
        charges.iter().try_for_each(refund).map_err(invalid)
    }

    /// Forgets a client of a rule.
    #[napi]
    pub fn reset(&self, rule: Unknown<'_>, key: Key<'_>) -> napi::Result<()> {
        self.own
            .engine
            .reset(self.id(rule)?, bytes(&key))
            .into_inner()
            .map_err(invalid)
    }

    /// The texts of the rules, in the order of their places.
    #[napi(getter)]
    pub fn texts(&self) -> Vec<String> {
        self.own
            .rules
            .iter()
            .map(|own| own.rule.to_string())
            .collect()
    }

    /// Returns the header `RateLimit-Policy` of a rule.
    #[napi]
    pub fn policy_header(&self, name: String) -> Option<String> {
        let own = self.own.rules.iter().find(|own| own.name == name)?;
        earrrl_bindings::policy_header(&name, &own.rule)
    }

    /// Returns the header `RateLimit` of a rule, for the available units and their seconds.
    #[napi]
    pub fn limit_header(&self, name: String, units: f64, seconds: f64) -> Option<String> {
        figures::limit_header(&name, units, seconds)
    }
}

impl NativeEngine {
    fn id(&self, rule: Unknown<'_>) -> napi::Result<RuleId> {
        let name = value::text("rule", rule)?;
        let own = self.own.rules.iter().find(|own| own.name == name);
        let unknown = || invalid(format!("no rule is called {}", shown_text(&name)));
        own.map(|own| own.id).ok_or_else(unknown)
    }
}

impl Own {
    /// Decides a request and writes the figures. Returns the place of the deciding rule.
    fn decide(&self, env: &Env, mode: Mode, parts: &[Part<'_>]) -> napi::Result<u32> {
        let charges = self.charges(parts);
        let engine = self.engine.now(clock::date(env))?;
        let decision = engine.decide(&charges, mode, None).into_inner();
        let decision = decision.map_err(invalid)?;
        let place = parts[decision.rule].0;
        let rule = &self.rules[parts[decision.rule].0].rule;
        let available = Available::from_decision(rule, &decision, decision.rule).or_else(|| {
            let one = Charge {
                cost: Cost::ONE,
                ..charges[decision.rule]
            };
            let peeked = engine.decide(&[one], Mode::Peek, None).into_inner().ok()?;
            Some(Available::from_peek(rule, &peeked))
        });
        self.figures.write(&decision, available);
        Ok(place as u32)
    }

    fn charges<'a>(&self, parts: &'a [Part<'_>]) -> Vec<Charge<'a>> {
        let charge = |(place, key, cost): &'a Part<'_>| Charge {
            rule: self.rules[*place].id,
            key: bytes(key),
            cost: *cost,
        };
        parts.iter().map(charge).collect()
    }
}

/// Returns the parts of a request, each of which has three values.
fn parts_of<'a>(values: &[Unknown<'a>]) -> napi::Result<Vec<Part<'a>>> {
    let part = |values: &[Unknown<'a>]| {
        let place = u32::from_unknown(values[0])? as usize;
        Ok((
            place,
            Key::from_unknown(values[1])?,
            cost("cost", values[2])?,
        ))
    };
    values.chunks_exact(3).map(part).collect()
}
