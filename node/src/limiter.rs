//! The keyed limiter: one rule for many clients.

use earrrl::{Cost, Nanos, Quota, RuleError, Verdict, check_name};
use earrrl_tower::headers::{Available, current};
use napi_derive::napi;

use crate::figures::{self, Figures};
use crate::input::{self, Key, LimiterOptions, bytes, invalid};

/// Decides requests under one rule; `lib/index.js` has its interface.
#[napi]
pub struct NativeLimiter {
    limiter: earrrl::Limiter<[u8]>,
    name: String,
}

#[napi]
impl NativeLimiter {
    /// Builds a limiter.
    #[napi(constructor)]
    pub fn new(rule: String, options: LimiterOptions) -> napi::Result<Self> {
        let name = options.name.clone().unwrap_or_else(|| "default".to_owned());
        check_name(&name).map_err(invalid)?;
        let mut builder = earrrl::Limiter::builder(input::rule(&rule, &options)?);
        builder = builder.capacity(input::capacity(options.capacity)?);
        if let Some(path) = options.path {
            builder = builder.state_file(path);
        }
        Ok(Self { limiter: builder.build().map_err(invalid)?, name })
    }

    /// Decides a request and counts it.
    #[napi]
    pub fn check(&self, key: Key<'_>, cost: Option<f64>, figures: Figures<'_>) -> napi::Result<()> {
        let key = bytes(&key);
        self.write(self.limiter.check_cost(key, input::cost(cost)?), key, figures)
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
    pub fn refund(&self, key: Key<'_>, cost: Option<f64>, at: Option<f64>) -> napi::Result<()> {
        let at = at.map(|at| Nanos::new(at as u64));
        self.limiter.refund(bytes(&key), input::cost(cost)?, at);
        Ok(())
    }

    /// Forgets a client.
    #[napi]
    pub fn reset(&self, key: Key<'_>) {
        self.limiter.reset(bytes(&key));
    }

    /// Returns the header `RateLimit` for the available units and the seconds that they must last.
    #[napi]
    pub fn limit_header(&self, units: f64, seconds: f64) -> Option<String> {
        let seconds = (!seconds.is_nan()).then_some(seconds as u64);
        let available = Available { units: units as u64, seconds };
        let header = current::limits(std::iter::once((&*self.name, available)))?;
        header.to_str().ok().map(str::to_owned)
    }

    /// Returns the header `RateLimit-Policy`.
    #[napi(getter)]
    pub fn policy_header(&self) -> Option<String> {
        let quota = Quota::of(self.limiter.rule().limit());
        let header = current::policies(std::iter::once((&*self.name, quota)))?;
        header.to_str().ok().map(str::to_owned)
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
