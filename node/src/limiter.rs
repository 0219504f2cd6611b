//! The keyed limiter: one rule for many clients.

use std::rc::Rc;

use earrrl::internal::check_name;
use earrrl::{Cost, Mode, RuleError, Verdict};
use earrrl_bindings::{Clock, check_clock};
use earrrl_tower::headers::Available;
use napi::Env;
use napi::bindgen_prelude::{Float64Array, Function, ObjectFinalize, Unknown};
use napi_derive::napi;

use crate::clock::{self, TestClock, Timed};
use crate::figures::{self, Figures};
use crate::input::{self, Key, StoreMemory, bytes, cost_or_one};
use crate::value::{self, Options, failed, invalid, optional};

/// Decides requests under one rule; `lib/limiter.cjs` has its interface.
#[napi(custom_finalize)]
pub struct NativeLimiter {
    own: Rc<Own>,
    name: String,
    memory: StoreMemory,
}

type Keyed = earrrl::Limiter<[u8], Clock>;

/// The limiter, and the array for its decisions.
struct Own {
    limiter: Timed<Keyed>,
    figures: Figures,
}

impl ObjectFinalize for NativeLimiter {
    fn finalize(self, env: Env) -> napi::Result<()> {
        self.memory.free(&env)
    }
}

#[napi]
impl NativeLimiter {
    /// Builds a limiter, which writes its decisions into an array.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        rule: Unknown<'_>,
        options: Unknown<'_>,
        figures: Float64Array,
    ) -> napi::Result<Self> {
        let known = [
            "path", "capacity", "action", "maxDelay", "maxCost", "name", "clock",
        ];
        let text = value::rule("rule", rule)?;
        let options = Options::of("options", options, &known)?;
        let path = options.get("path", value::text)?;
        let capacity = input::capacity(&options)?;
        let clock = clock::of(&env, &options)?;
        check_clock(clock.is_some(), path.is_some()).map_err(failed)?;
        let rule = input::rule_options(&options)?;
        let rule = rule.rule(&text).map_err(failed)?;
        let name = options
            .get("name", value::text)?
            .unwrap_or_else(|| "default".to_owned());
        check_name(&name).map_err(invalid)?;
        let mut builder = earrrl::Limiter::builder(rule).capacity(capacity);
        if let Some(path) = path {
            builder = builder.state_file(path);
        }
        let shared = clock.as_ref().map(TestClock::shared);
        let builder = builder.clock_of(|anchor| Clock::new(shared, anchor));
        let limiter = builder.build().map_err(invalid)?;
        let own = Rc::new(Own {
            limiter: Timed::new(limiter, clock),
            figures: Figures::new(figures),
        });
        Ok(Self {
            own,
            name,
            memory: StoreMemory::reserve(&env, capacity, 1)?,
        })
    }

    /// Returns the function that decides a request of a key and a cost, by default 1, in a mode. A function finds its
    /// limiter in much less time than a method does, and one for each mode need not copy the verdict to where the modes
    /// meet.
    #[napi]
    pub fn decider<'a>(&self, env: &'a Env, mode: u32) -> napi::Result<Function<'a, (), ()>> {
        match figures::mode(mode) {
            Mode::Check => self.function(env, Keyed::check_cost),
            Mode::Peek => self.function(env, Keyed::peek),
            Mode::Charge => self.function(env, Keyed::charge),
        }
    }

    /// Decides a request as of an instant in nanoseconds since the epoch, or as of the latest instant that
    /// was used if that is later.
    #[napi]
    pub fn decide_at(
        &self,
        key: Key<'_>,
        at: Unknown<'_>,
        cost: Unknown<'_>,
        mode: u32,
    ) -> napi::Result<()> {
        let at = input::instant("at", at)?;
        let cost = cost_or_one(cost)?;
        let key = bytes(&key);
        let Own { limiter, figures } = &*self.own;
        let verdict = match figures::mode(mode) {
            Mode::Check => limiter.check_at(key, cost, at),
            Mode::Peek => limiter.peek_at(key, cost, at),
            Mode::Charge => limiter.charge_at(key, cost, at),
        };
        let decision = verdict.map_err(invalid)?.decision();
        let available = Available::from_decision(limiter.rule(), &decision, 0).or_else(|| {
            let peeked = limiter.peek_at(key, Cost::ONE, at).ok()?;
            Some(Available::from_peek(limiter.rule(), &peeked.decision()))
        });
        figures.write(&decision, available);
        Ok(())
    }

    /// Takes back, as of an instant, a request that was counted at another, by default the latest one.
    #[napi]
    pub fn refund_at(
        &self,
        key: Key<'_>,
        at: Unknown<'_>,
        cost: Unknown<'_>,
        charged_at: Unknown<'_>,
    ) -> napi::Result<()> {
        let at = input::instant("at", at)?;
        let charged_at = optional("chargedAt", charged_at, input::instant)?;
        let cost = cost_or_one(cost)?;
        self.own
            .limiter
            .refund_at(bytes(&key), cost, charged_at, at);
        Ok(())
    }

    /// Takes back a request that was counted at an instant, in nanoseconds since the epoch.
    #[napi]
    pub fn refund(
        &self,
        env: Env,
        key: Key<'_>,
        cost: Unknown<'_>,
        at: Unknown<'_>,
    ) -> napi::Result<()> {
        let at = optional("at", at, input::instant)?;
        let cost = cost_or_one(cost)?;
        let limiter = self.own.limiter.now(clock::date(&env))?;
        limiter.refund(bytes(&key), cost, at);
        Ok(())
    }

    /// Forgets a client.
    #[napi]
    pub fn reset(&self, key: Key<'_>) {
        self.own.limiter.reset(bytes(&key));
    }

    /// Forgets all clients, and returns their number.
    #[napi]
    pub fn clear(&self) -> f64 {
        self.own.limiter.clear() as f64
    }

    /// Returns the header `RateLimit` for the available units and the seconds that they must last.
    #[napi]
    pub fn limit_header(&self, units: f64, seconds: f64) -> Option<String> {
        figures::limit_header(&self.name, units, seconds)
    }

    /// Returns the header `RateLimit-Policy`.
    #[napi(getter)]
    pub fn policy_header(&self) -> Option<String> {
        earrrl_bindings::policy_header(&self.name, self.own.limiter.rule())
    }

    /// The number of stored clients, including idle ones; of a large table an estimate from a sample.
    #[napi(getter)]
    pub fn size(&self) -> f64 {
        self.own.limiter.len() as f64
    }

    /// The name that headers show.
    #[napi(getter)]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rule's text.
    #[napi(getter)]
    pub fn rule(&self) -> String {
        self.own.limiter.rule().to_string()
    }
}

impl NativeLimiter {
    /// Returns the function that decides by a method of the limiter, and writes the figures.
    fn function<'a>(
        &self,
        env: &'a Env,
        decide: impl for<'l> Fn(&'l Keyed, &[u8], Cost) -> Result<Verdict<'l>, RuleError> + 'static,
    ) -> napi::Result<Function<'a, (), ()>> {
        let own = Rc::clone(&self.own);
        env.create_function_from_closure("decide", move |call| {
            let key = call.get::<Key<'_>>(0)?;
            let key = bytes(&key);
            let has_cost = call.length() > 1;
            let cost = has_cost.then(|| input::cost("cost", call.get(1)?));
            let cost = cost.transpose()?.unwrap_or(Cost::ONE);
            let limiter = own.limiter.now(clock::date(call.env))?;
            let decision = decide(limiter, key, cost).map_err(invalid)?.decision();
            let available = Available::from_decision(limiter.rule(), &decision, 0).or_else(|| {
                let peeked = limiter.peek(key, Cost::ONE).ok()?;
                Some(Available::from_peek(limiter.rule(), &peeked.decision()))
            });
            own.figures.write(&decision, available);
            Ok(())
        })
    }
}
