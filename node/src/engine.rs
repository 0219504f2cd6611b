//! Several rules in one decision.

use std::iter::zip;

use earrrl::{Charge, Cost, Engine as _, MemoryEngine, Mode, Rule, RuleId};
use earrrl_tower::headers::Available;
use napi::Env;
use napi::bindgen_prelude::{BigInt, Either, ObjectFinalize};
use napi_derive::napi;

use crate::figures::{self, Client, Figures};
use crate::input::{self, Key, StoreMemory, bytes, invalid};

/// Decides requests under several named rules; `lib/index.cjs` has its interface.
#[napi(custom_finalize)]
pub struct NativeEngine {
    engine: MemoryEngine,
    rules: Vec<NamedRule>,
    memory: StoreMemory,
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

/// A charge of a request, with the place of its rule.
type ChargeOf<'a> = (usize, Charge<'a>);

#[napi]
impl NativeEngine {
    /// Builds an engine with rules of these names and texts.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        names: Vec<String>,
        texts: Vec<String>,
        path: Option<String>,
        capacity: Option<f64>,
    ) -> napi::Result<Self> {
        let parse = |text: String, name: &str| {
            text.parse::<Rule>().map_err(|error| invalid(error.of(name)))
        };
        let read = zip(names, texts).map(|(name, text)| Ok((parse(text, &name)?, name)));
        let read = read.collect::<napi::Result<Vec<_>>>()?;
        let engine = input::engine(path, capacity)?;
        let prepare = |(rule, name): (Rule, String)| {
            let id = engine.prepare(&name, &rule).map_err(invalid)?;
            Ok(NamedRule { id, name, rule })
        };
        let rules = read.into_iter().map(prepare).collect::<napi::Result<Vec<_>>>()?;
        let memory = StoreMemory::reserve(&env, input::capacity(capacity)?, rules.len())?;
        Ok(Self { engine, rules, memory })
    }

    /// Decides a request in the mode "check", "peek" or "charge"; returns the name of the deciding rule.
    #[napi]
    pub fn decide(
        &self,
        mode: String,
        names: Vec<String>,
        keys: Vec<Key<'_>>,
        costs: Vec<Option<f64>>,
        figures: Figures<'_>,
    ) -> napi::Result<&str> {
        let mode = match mode.as_str() {
            "check" => Mode::Check,
            "peek" => Mode::Peek,
            "charge" => Mode::Charge,
            _ => return Err(invalid(format!("mode: {mode:?} is not check, peek or charge"))),
        };
        self.judge(mode, &self.charges(&names, &keys, &costs)?, figures)
    }

    /// Takes back a request that was counted at an instant, in nanoseconds since the epoch.
    #[napi]
    pub fn refund(
        &self,
        names: Vec<String>,
        keys: Vec<Key<'_>>,
        costs: Vec<Option<f64>>,
        at: Option<Either<f64, BigInt>>,
    ) -> napi::Result<()> {
        let at = at.map(|at| input::instant(&at)).transpose()?;
        let charges = self.charges(&names, &keys, &costs)?;
        let refund = |(_, charge): &ChargeOf<'_>| self.engine.refund(charge, at, None).into_inner();
        charges.iter().try_for_each(refund).map_err(invalid)
    }

    /// Forgets a client of a rule.
    #[napi]
    pub fn reset(&self, rule: String, key: Key<'_>) -> napi::Result<()> {
        let id = self.rules[self.place(&rule)?].id;
        self.engine.reset(id, bytes(&key)).into_inner().map_err(invalid)
    }

    /// Returns the clients of a rule with the highest rates, the highest first.
    #[napi]
    pub fn top(&self, rule: String, count: Option<f64>) -> napi::Result<Vec<Client>> {
        let id = self.rules[self.place(&rule)?].id;
        let top = self.engine.top(id, input::count(count)?).map_err(invalid)?;
        Ok(top.into_iter().map(Client::from).collect())
    }

    /// Returns the number by which `top` reports a key.
    #[napi]
    pub fn fingerprint(&self, key: Key<'_>) -> f64 {
        self.engine.hash(bytes(&key)).fingerprint() as f64
    }

    /// The names of the rules, each followed by its text.
    #[napi(getter)]
    pub fn rules(&self) -> Vec<String> {
        self.rules.iter().flat_map(|own| [own.name.clone(), own.rule.to_string()]).collect()
    }

    /// Returns the header `RateLimit-Policy` of a rule.
    #[napi]
    pub fn policy_header(&self, name: String) -> Option<String> {
        let own = self.rules.iter().find(|own| own.name == name)?;
        figures::policy_header(&name, &own.rule)
    }

    /// Returns the header `RateLimit` of a rule, for the available units and their seconds.
    #[napi]
    pub fn limit_header(&self, name: String, units: f64, seconds: f64) -> Option<String> {
        figures::limit_header(&name, units, seconds)
    }
}

impl NativeEngine {
    fn judge(
        &self,
        mode: Mode,
        charges: &[ChargeOf<'_>],
        figures: Figures<'_>,
    ) -> napi::Result<&str> {
        let only: Vec<_> = charges.iter().map(|(_, charge)| *charge).collect();
        let decision = self.engine.decide(&only, mode, None).into_inner().map_err(invalid)?;
        let (place, deciding) = charges[decision.rule];
        let own = &self.rules[place];
        let available =
            Available::from_decision(&own.rule, &decision, decision.rule).or_else(|| {
                let one = Charge { cost: Cost::ONE, ..deciding };
                let peeked = self.engine.decide(&[one], Mode::Peek, None).into_inner().ok()?;
                Some(Available::from_peek(&own.rule, &peeked))
            });
        figures::write(&decision, available, figures);
        Ok(&own.name)
    }

    /// Returns the charges of a request, with the places of their rules.
    fn charges<'a>(
        &self,
        names: &[String],
        keys: &'a [Key<'_>],
        costs: &[Option<f64>],
    ) -> napi::Result<Vec<ChargeOf<'a>>> {
        let read = |(name, (key, cost)): (&String, (&'a Key<'_>, &Option<f64>))| {
            let place = self.place(name)?;
            let rule = self.rules[place].id;
            Ok((place, Charge { rule, key: bytes(key), cost: input::cost(*cost)? }))
        };
        zip(names, zip(keys, costs)).map(read).collect()
    }

    fn place(&self, name: &str) -> napi::Result<usize> {
        let place = self.rules.iter().position(|own| own.name == name);
        place.ok_or_else(|| invalid(format!("no rule is called {name:?}")))
    }
}
