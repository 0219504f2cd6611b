//! What the server does, whatever the protocol: ask, peek, refund, reset.

pub mod attributes;
pub mod descriptors;
pub mod error;
mod inline;
pub mod key;
mod known;
pub mod room;
pub mod rules;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use earrrl::table::KeyHash;
use earrrl::{Charge, Clock, Cost, Decision, EngineError, MAX_CHARGES, Mode, Nanos, Outcome};
use earrrl_tower::headers::{Available, peek_cost};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use smallvec::SmallVec;

use crate::config::envoy::tree::Tree;
use crate::config::{Config, EnvoyConfig};
use crate::engine::Engine;
use crate::engine::throttle::{Call, Throttled};
use crate::metrics::{Family, Metrics, Outcomes};
use attributes::Attributes;
use descriptors::counts::CountsOf;
use descriptors::prepared::Descriptors;
use error::AskError;
use inline::InlineRules;
use key::{Key, check_key};
use known::Known;
use rules::{ActiveRule, ActiveRules, PreparedLimit};

/// The rules in force and what keeps their clients.
#[derive(Debug)]
pub struct Service {
    /// The counters.
    pub metrics: Metrics,
    engine: Engine,
    known: Known,
    known_from_plane: Known,
    rules: ArcSwap<ActiveRules>,
    inline: InlineRules,
    descriptors: ArcSwapOption<Descriptors>,
    descriptor_counts: Arc<CountsOf>,
    clock: TheClock,
    /// As it was started, and the clients that tables are meant for.
    envoy: (EnvoyConfig, usize),
}

/// The clock by which windows end.
struct TheClock(Arc<dyn Clock>);

impl fmt::Debug for TheClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// A request's share of one rule.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The rule.
    pub rule: &'a ActiveRule,
    /// The client.
    pub key: &'a [u8],
    /// What it costs; `None` for what the rule says.
    pub cost: Option<Cost>,
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Whether the answer is also stored.
    pub mode: Mode,
    /// Whether it says what `RateLimit` headers tell: under several rules that takes more peeks.
    pub available: bool,
}

impl From<Mode> for Manner {
    fn from(mode: Mode) -> Self {
        Self { mode, available: false }
    }
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answer<'a> {
    /// `None` when no rule applies: the request is allowed, and there is nothing to tell.
    pub decision: Option<Decision>,
    /// The rules that were charged, in order.
    pub charged: SmallVec<[(&'a ActiveRule, &'a PreparedLimit); 2]>,
    /// What the client may send under each of them, where that was asked for.
    pub available: SmallVec<[Available; 2]>,
}

impl<'a> Answer<'a> {
    /// The rule the figures come from.
    pub fn rule(&self) -> Option<(&'a ActiveRule, &'a PreparedLimit)> {
        self.charged.get(self.decision.as_ref()?.rule).copied()
    }
}

impl Service {
    /// Puts a configuration's rules in force.
    ///
    /// # Errors
    /// When there is not enough memory for the tables, say.
    pub fn new(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        let engine = Engine::new(&config.engine, config.capacity, Arc::clone(&clock))?;
        let metrics = Metrics::default();
        let descriptor_counts = Arc::default();
        let known = Known::default();
        let (rules, descriptors) =
            prepare(config, &engine, &known, &metrics.outcomes, &descriptor_counts)?;
        Ok(Self {
            metrics,
            engine,
            known,
            known_from_plane: Known::default(),
            rules: ArcSwap::from_pointee(rules),
            descriptors: ArcSwapOption::new(descriptors.map(Arc::new)),
            descriptor_counts,
            clock: TheClock(clock),
            envoy: (config.envoy.clone(), config.capacity),
            inline: InlineRules::new(config.server.allow_inline_rules, config.capacity),
        })
    }

    /// Exchanges the rules, which were validated whole before. Those that keep their name keep their
    /// clients' history.
    ///
    /// # Errors
    /// As [`Service::new`], and when another engine is asked for; the rules stay as they are.
    pub fn reload(&self, config: &Config) -> Result<(), String> {
        let had_rules = !self.rules.load().is_empty();
        if had_rules && config.rules.is_empty() && !config.no_rules {
            return Err(
                "the file has no [[rule]] any more; say rules = \"none\" if that is meant".into()
            );
        }
        self.engine.may_reload(&config.engine)?;
        let (outcomes, counts) = (&self.metrics.outcomes, &self.descriptor_counts);
        let prepared = prepare(config, &self.engine, &self.known, outcomes, counts);
        let (rules, descriptors) = prepared.map_err(|error| error.to_string())?;
        self.engine.reload(&config.engine);
        self.rules.store(Arc::new(rules));
        // What a control plane sent stays until it sends something else.
        if config.envoy.control_plane.is_none() {
            self.descriptors.store(descriptors.map(Arc::new));
        }
        Ok(())
    }

    /// Exchanges the descriptors, as they came from a control plane.
    ///
    /// # Errors
    /// As [`Service::new`], and for a limit that is invalid; the descriptors stay as they are.
    pub fn reload_descriptors(&self, tree: Tree) -> Result<(), String> {
        let (config, capacity) = &self.envoy;
        tree.check(config.algorithm).map_err(|error| error.to_string())?;
        let plan = descriptors::prepared::DescriptorsPlan::new(config, Arc::new(tree), *capacity);
        let plan = plan.map_err(|error| error.to_string())?;
        let limits: Vec<_> = plan.limits().collect();
        let ids = self.known_from_plane.prepare(&self.engine, &limits);
        let mut ids = ids.map_err(|error| error.to_string())?.into_iter();
        let descriptors = plan.finish(&mut ids, &self.descriptor_counts);
        self.descriptors.store(Some(Arc::new(descriptors)));
        Ok(())
    }

    /// The rules in force; to be asked for once for each batch of requests.
    pub fn rules(&self) -> arc_swap::Guard<Arc<ActiveRules>> {
        self.rules.load()
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The rule that a client brought as text.
    ///
    /// # Errors
    /// When that is not allowed, the text is no rule, or there are too many.
    pub fn inline_rule(&self, text: &str) -> Result<Arc<ActiveRule>, AskError> {
        self.inline.get(text, &self.engine, &self.metrics.outcomes)
    }

    /// Answers a request of Envoy's; what can't be answered before `deadline` passes.
    ///
    /// # Errors
    /// [`AskError`]; nothing is stored then.
    pub async fn should_rate_limit(
        &self,
        request: &RateLimitRequest,
        mode: Mode,
        deadline: Option<Instant>,
    ) -> Result<RateLimitResponse, AskError> {
        let descriptors = self.descriptors.load();
        let descriptors = descriptors.as_ref().ok_or(AskError::NotConfigured)?;
        let rules = self.rules.load();
        // Not moved about: it is large.
        let clock = self.clock.0.as_ref();
        let answer = pin!(descriptors.answer(&self.engine, &rules, clock, request, mode));
        match deadline.filter(|_| self.engine.waits()) {
            None => answer.await,
            Some(deadline) => {
                let passes = || self.engine.passes_undecided();
                let decided = descriptors::in_time(answer, deadline).await;
                decided.unwrap_or_else(|_| Ok(descriptors::undecided(request, passes())))
            }
        }
    }

    /// The counters of descriptors.
    pub fn descriptor_counts(&self) -> &CountsOf {
        &self.descriptor_counts
    }

    /// The counters of descriptors under the peer's names, where that was asked for.
    pub fn descriptor_metrics(&self) -> Vec<Family> {
        let asked = self.descriptors.load().as_ref().is_some_and(|d| d.config.metrics);
        if asked { self.descriptor_counts.families(&self.metrics) } else { Vec::new() }
    }

    /// Answers a call of `CL.THROTTLE`, by the state that all servers share where there is one.
    ///
    /// # Errors
    /// Parameters that can't be counted exactly there.
    pub async fn throttle(&self, key: &[u8], call: Call) -> Result<Throttled, AskError> {
        Ok(self.engine.throttle(key, call).await?)
    }

    /// Begins to fetch the state of a client that is about to ask.
    #[inline]
    pub fn prefetch(&self, rule: &ActiveRule, key: &[u8]) -> Option<KeyHash> {
        self.engine.prefetch(rule.limit_for_key(key)?.id, key)
    }

    /// Asks one rule.
    ///
    /// # Errors
    /// [`AskError`]; nothing is stored then.
    #[inline]
    pub async fn ask<'a>(
        &self,
        ask: Ask<'a>,
        manner: impl Into<Manner>,
    ) -> Result<Answer<'a>, AskError> {
        self.ask_hashed(ask, None, manner).await
    }

    /// The same where [`prefetch`](Self::prefetch) has hashed the key.
    ///
    /// # Errors
    /// [`AskError`]; nothing is stored then.
    #[inline]
    pub async fn ask_hashed<'a>(
        &self,
        ask: Ask<'a>,
        hash: Option<KeyHash>,
        manner: impl Into<Manner>,
    ) -> Result<Answer<'a>, AskError> {
        check_key(ask.key)?;
        let Some(limit) = ask.rule.limit_for_key(ask.key) else {
            return Ok(self.exempt(ask.rule));
        };
        let cost = ask.cost.unwrap_or_else(|| ask.rule.plain_cost());
        let charge = Charge { rule: limit.id, key: ask.key, cost };
        let charged = SmallVec::from_slice(&[(ask.rule, limit)]);
        self.charge(charged, &[charge], hash, manner.into()).await
    }

    /// The same where no more than the decision is wanted; `None` where the rule leaves the client alone.
    ///
    /// # Errors
    /// [`AskError`]; nothing is stored then.
    #[inline]
    pub async fn decide_hashed(
        &self,
        ask: Ask<'_>,
        hash: Option<KeyHash>,
        mode: Mode,
    ) -> Result<Option<Decision>, AskError> {
        check_key(ask.key)?;
        let Some(limit) = ask.rule.limit_for_key(ask.key) else {
            return Ok(self.exempt(ask.rule).decision);
        };
        let cost = ask.cost.unwrap_or_else(|| ask.rule.plain_cost());
        let charge = Charge { rule: limit.id, key: ask.key, cost };
        Ok(Some(self.decide(&[(ask.rule, limit)], &[charge], hash, mode).await?))
    }

    /// Decides, and counts what each rule said.
    #[inline]
    async fn decide(
        &self,
        charged: &[(&ActiveRule, &PreparedLimit)],
        charges: &[Charge<'_>],
        hash: Option<KeyHash>,
        mode: Mode,
    ) -> Result<Decision, EngineError> {
        let decision = match (charges, hash) {
            ([charge], Some(hash)) => self.engine.decide_hashed(charge, hash, mode).await?,
            _ => self.engine.decide(charges, mode).await?,
        };
        if mode != Mode::Peek {
            for (place, (rule, limit)) in charged.iter().enumerate() {
                let outcome = outcome(&decision, place, limit);
                rule.outcomes.count(outcome);
                if outcome == Outcome::Observe {
                    rule.outcomes.log_observed(&rule.name, charges[place].key);
                }
            }
        }
        Ok(decision)
    }

    /// Asks several rules: all or nothing.
    ///
    /// # Errors
    /// [`AskError`]; nothing is stored then.
    pub async fn ask_all<'a>(
        &self,
        asks: &[Ask<'a>],
        manner: impl Into<Manner>,
    ) -> Result<Answer<'a>, AskError> {
        if asks.len() > MAX_CHARGES {
            return Err(EngineError::Charges(asks.len()).into());
        }
        let mut charged = SmallVec::with_capacity(asks.len());
        let mut charges: SmallVec<[Charge<'a>; 4]> = SmallVec::with_capacity(asks.len());
        for ask in asks {
            check_key(ask.key)?;
            if let Some(limit) = ask.rule.limit_for_key(ask.key) {
                let cost = ask.cost.unwrap_or_else(|| ask.rule.plain_cost());
                charged.push((ask.rule, limit));
                charges.push(Charge { rule: limit.id, key: ask.key, cost });
            }
        }
        self.charge(charged, &charges, None, manner.into()).await
    }

    /// Asks every rule that matches a request.
    ///
    /// # Errors
    /// [`AskError`]; nothing is stored then.
    pub async fn ask_matching<'a>(
        &self,
        rules: &'a ActiveRules,
        request: &Attributes<'_>,
        manner: Manner,
    ) -> Result<Answer<'a>, AskError> {
        let mut charged = SmallVec::new();
        let mut keyed: SmallVec<[(Key, Cost); 4]> = SmallVec::new();
        let mut unmatched = true;
        for rule in rules.iter().filter(|rule| rule.matches(request)) {
            unmatched = false;
            let Some(limit) = rule.limit_for(request) else { continue };
            let (key, cost) = (rule.key(request), rule.cost(request).map_err(AskError::Invalid)?);
            check_key(&key)?;
            charged.push((rule, limit));
            keyed.push((key, cost));
        }
        if unmatched && manner.mode != Mode::Peek {
            self.metrics.unmatched.increment();
        }
        let limits = charged.iter().map(|(_, limit): &(_, &PreparedLimit)| limit.id);
        let each = limits.zip(&keyed).map(|(rule, (key, cost))| Charge { rule, key, cost: *cost });
        let charges: SmallVec<[Charge<'_>; 4]> = each.collect();
        self.charge(charged, &charges, None, manner).await
    }

    /// Takes back a charge.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn refund(&self, ask: Ask<'_>, charged_at: Option<Nanos>) -> Result<(), AskError> {
        check_key(ask.key)?;
        let Some(limit) = ask.rule.limit_for_key(ask.key) else { return Ok(()) };
        let cost = ask.cost.unwrap_or_else(|| ask.rule.plain_cost());
        let charge = Charge { rule: limit.id, key: ask.key, cost };
        Ok(self.engine.refund(&charge, charged_at).await?)
    }

    /// Forgets a client under one rule.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn reset(&self, rule: &ActiveRule, key: &[u8]) -> Result<(), AskError> {
        check_key(key)?;
        let Some(limit) = rule.limit_for_key(key) else { return Ok(()) };
        Ok(self.engine.reset(limit.id, key).await?)
    }

    #[inline]
    async fn charge<'a>(
        &self,
        charged: SmallVec<[(&'a ActiveRule, &'a PreparedLimit); 2]>,
        charges: &[Charge<'_>],
        hash: Option<KeyHash>,
        Manner { mode, available }: Manner,
    ) -> Result<Answer<'a>, AskError> {
        if charges.is_empty() {
            return Ok(Answer { decision: None, charged, available: SmallVec::new() });
        }
        let decision = self.decide(&charged, charges, hash, mode).await?;
        let available = match available {
            true => match told(&decision, &charged) {
                Some(available) => available,
                // Boxed, so that it takes no room in connections where it is not asked for.
                None => Box::pin(self.available(&decision, &charged, charges)).await?,
            },
            false => SmallVec::new(),
        };
        Ok(Answer { decision: Some(decision), charged, available })
    }

    /// What the client may send under each rule: as the decision tells it, or a peek.
    async fn available(
        &self,
        decision: &Decision,
        charged: &[(&ActiveRule, &PreparedLimit)],
        charges: &[Charge<'_>],
    ) -> Result<SmallVec<[Available; 2]>, EngineError> {
        let mut all = SmallVec::new();
        for (place, ((_, limit), charge)) in charged.iter().zip(charges).enumerate() {
            let told = Available::told(&limit.rule, decision, place);
            all.push(match told {
                Some(available) => available,
                None => {
                    let cost = peek_cost(decision, place, charge.cost);
                    let peek =
                        self.engine.decide(&[Charge { cost, ..*charge }], Mode::Peek).await?;
                    Available::peeked(&limit.rule, &peek)
                }
            });
        }
        Ok(all)
    }

    fn exempt<'a>(&self, rule: &ActiveRule) -> Answer<'a> {
        rule.outcomes.count(Outcome::Allow);
        Answer { decision: None, charged: SmallVec::new(), available: SmallVec::new() }
    }
}

/// What the client may send under each rule, where the decision tells it of all.
fn told(
    decision: &Decision,
    charged: &[(&ActiveRule, &PreparedLimit)],
) -> Option<SmallVec<[Available; 2]>> {
    let rules = charged.iter().enumerate();
    rules.map(|(place, (_, limit))| Available::told(&limit.rule, decision, place)).collect()
}

/// The rules and descriptors of a configuration. The engine prepares all of their limits, or on an
/// error none.
fn prepare(
    config: &Config,
    engine: &Engine,
    known: &Known,
    outcomes: &Outcomes,
    counts: &Arc<CountsOf>,
) -> Result<(ActiveRules, Option<Descriptors>), EngineError> {
    let rules = rules::Plan::new(config);
    let descriptors = descriptors::prepared::DescriptorsPlan::of_config(config)?;
    let limits = rules.limits().chain(descriptors.iter().flat_map(|plan| plan.limits()));
    let mut ids = known.prepare(engine, &limits.collect::<Vec<_>>())?.into_iter();
    let rules = rules.finish(&mut ids, outcomes);
    Ok((rules, descriptors.map(|plan| plan.finish(&mut ids, counts))))
}

/// What one of the charged rules said by itself.
fn outcome(decision: &Decision, place: usize, limit: &PreparedLimit) -> Outcome {
    use earrrl::Action;
    if !decision.is_over(place) {
        return Outcome::Allow;
    }
    match limit.rule.action() {
        Action::Observe => Outcome::Observe,
        Action::Quarantine => Outcome::Quarantine,
        Action::ShadowBan => Outcome::ShadowBan,
        Action::Delay { .. } if decision.outcome == Outcome::Delay => Outcome::Delay,
        _ => Outcome::Deny,
    }
}
