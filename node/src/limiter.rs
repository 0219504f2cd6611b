//! The keyed limiter: one rule for many clients.

use earrrl::{Cost, RuleError, Verdict, check_name};
use earrrl_tower::headers::Available;
use napi::Env;
use napi::bindgen_prelude::{BigInt, Either, ObjectFinalize};
use napi_derive::napi;

use crate::figures::{self, Client, Figures};
use crate::input::{self, Key, LimiterOptions, StoreMemory, bytes, invalid};

/// Decides requests under one rule; `lib/index.cjs` has its interface.
#[napi(custom_finalize)]
pub struct NativeLimiter {
    limiter: earrrl::Limiter<[u8]>,
    name: String,
    memory: StoreMemory,
}

impl ObjectFinalize for NativeLimiter {
    fn finalize(self, env: Env) -> napi::Result<()> {
        self.memory.free(&env)
    }
}

#[napi]
impl NativeLimiter {
    /// Builds a limiter.
    #[napi(constructor)]
    pub fn new(env: Env, rule: String, options: LimiterOptions) -> napi::Result<Self> {
        let name = options.name.clone().unwrap_or_else(|| "default".to_owned());
        check_name(&name).map_err(invalid)?;
        let mut builder = earrrl::Limiter::builder(input::rule(&rule, &options)?);
        let capacity = input::capacity(options.capacity)?;
        builder = builder.capacity(capacity);
        if let Some(path) = options.path {
            builder = builder.state_file(path);
        }
        let limiter = builder.build().map_err(invalid)?;
        Ok(Self { limiter, name, memory: StoreMemory::reserve(&env, capacity, 1)? })
    }

    /// Decides a request and counts it.
    #[napi]
    pub fn check(&self, key: Key<'_>, cost: Option<f64>, figures: Figures<'_>) -> napi::Result<()> {
        let key = bytes(&key);
        self.write(self.limiter.check_cost(key, input::cost(cost)?), key, figures)
    }

    /// Decides a request as of an instant in nanoseconds since the epoch, or as of the latest instant that
    /// was used if that is later.
    #[napi]
    pub fn check_at(
        &self,
        key: Key<'_>,
        at: Either<f64, BigInt>,
        cost: Option<f64>,
        figures: Figures<'_>,
    ) -> napi::Result<()> {
        let (at, cost) = (input::instant(&at)?, input::cost(cost)?);
        let decision = self.limiter.check_at(bytes(&key), cost, at).map_err(invalid)?.decision();
        let available = Available::from_decision(self.limiter.rule(), &decision, 0);
        figures::write(&decision, available, figures);
        Ok(())
    }

    /// Decides a request and counts nothing.
    #[napi]
    pub fn peek(&self, key: Key<'_>, cost: Option<f64>, figures: Figures<'_>) -> napi::Result<()> {
        let key = bytes(&key);
        self.write(self.limiter.peek(key, input::cost(cost)?), key, figures)
    }

    /// Counts a request even if it is over the limit.
    #[napi]
    pub fn charge(
        &self,
        key: Key<'_>,
        cost: Option<f64>,
        figures: Figures<'_>,
    ) -> napi::Result<()> {
        let key = bytes(&key);
        self.write(self.limiter.charge(key, input::cost(cost)?), key, figures)
    }

    /// Takes back a request that was counted at an instant, in nanoseconds since the epoch.
    #[napi]
    pub fn refund(
        &self,
        key: Key<'_>,
        cost: Option<f64>,
        at: Option<Either<f64, BigInt>>,
    ) -> napi::Result<()> {
        let at = at.map(|at| input::instant(&at)).transpose()?;
        self.limiter.refund(bytes(&key), input::cost(cost)?, at);
        Ok(())
    }

    /// Forgets a client.
    #[napi]
    pub fn reset(&self, key: Key<'_>) {
        self.limiter.reset(bytes(&key));
    }

    /// Returns the clients with the highest rates, the highest first.
    #[napi]
    pub fn top(&self, count: Option<f64>) -> napi::Result<Vec<Client>> {
        let top = self.limiter.top(input::count(count)?);
        Ok(top.into_iter().map(Client::from).collect())
    }

    /// Returns the number by which `top` reports a key.
    #[napi]
    pub fn fingerprint(&self, key: Key<'_>) -> f64 {
        self.limiter.hash(bytes(&key)).fingerprint() as f64
    }

    /// Returns the header `RateLimit` for the available units and the seconds that they must last.
    #[napi]
    pub fn limit_header(&self, units: f64, seconds: f64) -> Option<String> {
        figures::limit_header(&self.name, units, seconds)
    }

    /// Returns the header `RateLimit-Policy`.
    #[napi(getter)]
    pub fn policy_header(&self) -> Option<String> {
        figures::policy_header(&self.name, self.limiter.rule())
    }

    /// The number of stored clients, including idle ones; of a large table an estimate from a sample.
    #[napi(getter)]
    pub fn size(&self) -> f64 {
        self.limiter.len() as f64
    }

    /// The name that headers show.
    #[napi(getter)]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rule's text.
    #[napi(getter)]
    pub fn rule(&self) -> String {
        self.limiter.rule().to_string()
    }
}

impl NativeLimiter {
    #[inline]
    fn write(
        &self,
        verdict: Result<Verdict<'_>, RuleError>,
        key: &[u8],
        figures: Figures<'_>,
    ) -> napi::Result<()> {
        let (decision, rule) = (verdict.map_err(invalid)?.decision(), self.limiter.rule());
        let available = Available::from_decision(rule, &decision, 0).or_else(|| {
            let peeked = self.limiter.peek(key, Cost::ONE).ok()?;
            Some(Available::from_peek(rule, &peeked.decision()))
        });
        figures::write(&decision, available, figures);
        Ok(())
    }
}
