//! The service behind all protocols: the rules in force, and the decisions on requests ([`ask`]).

pub mod ask;
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

use crate::protobuf::ratelimit::{RateLimitRequest, RateLimitResponse};
use arc_swap::{ArcSwap, ArcSwapOption};
use earrrl::{Clock, EngineError, Mode};

use crate::config::envoy::tree::Tree;
use crate::config::{Config, EnvoyConfig};
use crate::engine::Engine;
use crate::engine::throttle::{Call, Throttled};
use crate::metrics::{Family, Metrics, Outcomes, PassReason};
use descriptors::counts::CountsOf;
use descriptors::overrides::Overrides;
use descriptors::prepared::Descriptors;
use error::AskError;
use inline::InlineRules;
use known::Known;
use rules::{ActiveRule, ActiveRules};

/// The rules in force, and the engine that keeps their clients.
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
    overrides: Arc<Overrides>,
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

impl Service {
    /// Puts a configuration's rules in force.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory for the tables, for example.
    pub fn new(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        let engine = Engine::new(&config.engine, config.capacity, Arc::clone(&clock))?;
        let metrics = Metrics::default();
        let (descriptor_counts, overrides) = (Arc::default(), Arc::default());
        let known = Known::default();
        let (rules, descriptors) =
            prepare(config, &engine, &known, &metrics.outcomes, (&descriptor_counts, &overrides))?;
        Ok(Self {
            metrics,
            engine,
            known,
            known_from_plane: Known::default(),
            rules: ArcSwap::from_pointee(rules),
            descriptors: ArcSwapOption::new(descriptors.map(Arc::new)),
            descriptor_counts,
            overrides,
            clock: TheClock(clock),
            envoy: (config.envoy.clone(), config.capacity),
            inline: InlineRules::new(config.server.allow_inline_rules, config.capacity),
        })
    }

    /// Exchanges the rules, which were validated whole before. Those that keep their name keep their
    /// clients' history.
    ///
    /// # Errors
    /// Returns the errors of [`Service::new`], and one if another engine is asked for; the rules
    /// stay as they are.
    pub fn reload(&self, config: &Config) -> Result<(), String> {
        let had_rules = !self.rules.load().is_empty();
        if had_rules && config.rules.is_empty() && !config.no_rules {
            return Err(
                "the file has no [[rule]] any more; say rules = \"none\" if that is meant".into()
            );
        }
        self.engine.may_reload(&config.engine)?;
        let lasting = (&self.descriptor_counts, &self.overrides);
        let outcomes = &self.metrics.outcomes;
        let prepared = prepare(config, &self.engine, &self.known, outcomes, lasting);
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
    /// Returns the errors of [`Service::new`], and that of an invalid limit; the descriptors stay
    /// as they are.
    pub fn reload_descriptors(&self, tree: Tree) -> Result<(), String> {
        let (config, capacity) = &self.envoy;
        tree.check(config.algorithm).map_err(|error| error.to_string())?;
        let plan = descriptors::prepared::DescriptorsPlan::new(config, Arc::new(tree), *capacity);
        let plan = plan.map_err(|error| error.to_string())?;
        let limits: Vec<_> = plan.limits().collect();
        let ids = self.known_from_plane.prepare(&self.engine, &limits);
        let mut ids = ids.map_err(|error| error.to_string())?.into_iter();
        let descriptors = plan.finish(&mut ids, &self.descriptor_counts, &self.overrides);
        self.descriptors.store(Some(Arc::new(descriptors)));
        Ok(())
    }

    /// Returns the rules in force; to be called once for each batch of requests.
    pub fn rules(&self) -> arc_swap::Guard<Arc<ActiveRules>> {
        self.rules.load()
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the rule that a client brought as text.
    ///
    /// # Errors
    /// Returns an error if that is not allowed, the text is not a rule, or there are too many.
    pub fn inline_rule(&self, text: &str) -> Result<Arc<ActiveRule>, AskError> {
        self.inline.get(text, &self.engine, &self.metrics.outcomes)
    }

    /// Answers a request of Envoy's; what can't be answered before `deadline` passes.
    ///
    /// # Errors
    /// Returns an [`AskError`]; nothing is stored then.
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
                let decided = descriptors::in_time(answer, deadline).await;
                decided.unwrap_or_else(|_| {
                    let passes = self.engine.passes_undecided();
                    if passes {
                        self.metrics.unjudged.count(PassReason::Late);
                    }
                    Ok(descriptors::undecided(request, passes))
                })
            }
        }
    }

    /// Returns the number of requests that passed without a verdict, by the reason.
    pub fn passed_unjudged(&self) -> [(&'static str, u64); PassReason::ALL.len()] {
        PassReason::ALL.map(|reason| {
            let by_engine =
                if reason == PassReason::RuleFailed { self.engine.unjudged() } else { 0 };
            (reason.name(), self.metrics.unjudged.get(reason) + by_engine)
        })
    }

    /// Returns the counters of descriptors.
    pub fn descriptor_counts(&self) -> &CountsOf {
        &self.descriptor_counts
    }

    /// Returns the counters of descriptors under the peer's names, if the configuration asks for
    /// them.
    pub fn descriptor_metrics(&self) -> Vec<Family> {
        let asked = self.descriptors.load().as_ref().is_some_and(|d| d.config.metrics);
        if asked { self.descriptor_counts.families(&self.metrics) } else { Vec::new() }
    }

    /// Answers a call of `CL.THROTTLE`, by the state that all servers share where there is one.
    ///
    /// # Errors
    /// Parameters that can't be counted exactly there.
    pub async fn throttle(&self, key: &[u8], call: Call) -> Result<Throttled, AskError> {
        // In memory only the hash of a key is stored; the path that does not wait hashes the whole key.
        let key = if self.engine.waits() { key::bounded(key) } else { key.into() };
        Ok(self.engine.throttle(&key, call).await?)
    }
}

/// The rules and descriptors of a configuration. The engine prepares all of their limits, or on an
/// error none.
fn prepare(
    config: &Config,
    engine: &Engine,
    known: &Known,
    outcomes: &Outcomes,
    (counts, overrides): (&Arc<CountsOf>, &Arc<Overrides>),
) -> Result<(ActiveRules, Option<Descriptors>), EngineError> {
    let rules = rules::RulesPlan::new(config);
    let descriptors = descriptors::prepared::DescriptorsPlan::of_config(config)?;
    let limits = rules.limits().chain(descriptors.iter().flat_map(|plan| plan.limits()));
    let mut ids = known.prepare(engine, &limits.collect::<Vec<_>>())?.into_iter();
    let rules = rules.finish(&mut ids, outcomes);
    engine.set_on_error(&rules.verdicts_on_error());
    Ok((rules, descriptors.map(|plan| plan.finish(&mut ids, counts, overrides))))
}
