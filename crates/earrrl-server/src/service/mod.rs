//! The rate limit service that all protocols use: the active rules, and the decisions on requests
//! ([`ask`]).

pub mod answer;
pub mod ask;
pub mod attributes;
pub mod changes;
pub mod descriptors;
pub mod error;
pub mod event_source;
pub mod hints;
mod inline;
pub mod key;
mod known;
mod late;
pub mod limit;
mod matching;
pub mod memory_check;
pub mod names;
mod overrides;
pub mod reports;
pub mod reserve;
pub mod rule;
pub mod rules;
mod survey;

use std::borrow::Cow;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use crate::protobuf::ratelimit::{RateLimitRequest, RateLimitResponse};
use arc_swap::{ArcSwap, ArcSwapOption};
use earrrl::{Clock, EngineError, HoldId, HoldTerms, Mode, Nanos};
use tokio::sync::broadcast;

use crate::config::envoy::tree::Tree;
use crate::config::{Config, EnvoyConfig};
use crate::engine::throttle::{Call, Throttled};
use crate::engine::{Engine, why_not_prepared};
use crate::metrics::{Family, Metrics, PassReason};
use descriptors::counts::CountsOf;
use descriptors::prepared::{DescriptorRecords, Descriptors};
use error::AskError;
use inline::InlineRules;
use known::Known;
use names::ResetClient;
use rule::{ActiveRule, RuleRecords};
use rules::ActiveRules;

/// The number of resets that a stream of events may lag behind.
const MAX_RESETS: usize = 1024;

/// The active rules, and the engine that stores the state of their clients.
#[derive(Debug)]
pub struct Service {
    /// The counters for the server's metrics.
    pub metrics: Metrics,
    /// The warnings about proxies that were logged already.
    pub hints: hints::Hints,
    engine: Engine,
    known: Known,
    known_from_plane: Known,
    rules: ArcSwap<ActiveRules>,
    inline: InlineRules,
    descriptors: ArcSwapOption<Descriptors>,
    descriptor_records: Arc<DescriptorRecords>,
    clock: TheClock,
    directories: names::Directories,
    reports: reports::Reports,
    resets: broadcast::Sender<ResetClient>,
    /// The settings for Envoy that the server was started with, and the number of clients that
    /// tables are sized for.
    envoy: (EnvoyConfig, usize),
}

/// The clock that determines when windows end.
struct TheClock(Arc<dyn Clock>);

impl fmt::Debug for TheClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

impl Service {
    /// Creates the service, and prepares the limits of a configuration's rules.
    ///
    /// # Errors
    /// Returns an [`EngineError`] if a limit cannot be prepared, for example because there is not
    /// enough memory for its table.
    pub fn new(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        let engine = Engine::new(&config.engine, config.capacity, Arc::clone(&clock))?;
        engine.set_max_reservations(config.max_reservations);
        let metrics = Metrics::default();
        let known = Known::default();
        let directories = names::Directories::new(&config.server.names);
        let descriptor_records = Arc::new(DescriptorRecords::new(directories.of_descriptors()));
        let kept = RuleRecords {
            outcomes: &metrics.outcomes,
            directories: &directories,
        };
        let (rules, descriptors) =
            prepare(config, &engine, (&known, None), kept, &descriptor_records)?;
        engine.log_swept();
        Ok(Self {
            metrics,
            hints: hints::Hints::default(),
            engine,
            known,
            known_from_plane: Known::default(),
            rules: ArcSwap::from_pointee(rules),
            descriptors: ArcSwapOption::new(descriptors.map(Arc::new)),
            descriptor_records,
            clock: TheClock(clock),
            directories,
            reports: reports::Reports::default(),
            resets: broadcast::Sender::new(MAX_RESETS),
            envoy: (config.envoy.clone(), config.capacity),
            inline: InlineRules::new(config.server.allow_inline_rules, config.capacity),
        })
    }

    /// Returns the present instant of the clock that decides.
    pub fn now(&self) -> Nanos {
        self.clock.0.now()
    }

    /// Returns a receiver of the clients that are reset from now on.
    pub fn resets(&self) -> broadcast::Receiver<ResetClient> {
        self.resets.subscribe()
    }

    /// Replaces the rules by those of a validated configuration. Rules that keep their name keep
    /// their clients' state. `before` is called once nothing can fail any more, before the rules are in
    /// force, so that a client that sees the new rules sees its effects, too.
    ///
    /// # Errors
    /// Returns an error if a limit cannot be prepared, or if the configuration selects another
    /// engine. The active rules are unchanged then.
    pub fn reload(&self, config: &Config, before: impl FnOnce()) -> Result<(), String> {
        let had_rules = !self.rules.load().is_empty();
        if had_rules && config.rules.is_empty() && !config.no_rules {
            return Err(
                "the file has no [[rule]] any more; set rules = \"none\" if that is intended"
                    .into(),
            );
        }
        let had_files = self
            .descriptors
            .load()
            .as_ref()
            .is_some_and(|now| now.tree.domains() > 0);
        let has_files = config
            .envoy
            .tree
            .as_ref()
            .is_some_and(|tree| tree.domains() > 0);
        if had_files && !has_files && !config.envoy.files.is_empty() {
            return Err(
                "no file with descriptors is left; a file that has only `domain: NAME` \
                        limits nothing, if that is intended"
                    .into(),
            );
        }
        self.engine.may_reload(&config.engine)?;
        let Self {
            metrics,
            directories,
            ..
        } = self;
        let outcomes = &metrics.outcomes;
        let kept = RuleRecords {
            outcomes,
            directories,
        };
        let descriptors = self.descriptors.load_full();
        let known = (&self.known, descriptors.as_deref());
        let prepared = prepare(config, &self.engine, known, kept, &self.descriptor_records);
        let (rules, descriptors) = prepared.map_err(why_not_prepared)?;
        self.engine.reload(&config.engine);
        self.engine.set_max_reservations(config.max_reservations);
        before();
        self.directories
            .retain(|name| rules.get(name.as_bytes()).is_some());
        self.rules.store(Arc::new(rules));
        // Descriptors from a control plane stay active until it sends new ones.
        if config.envoy.control_plane.is_none() {
            self.descriptors.store(descriptors.map(Arc::new));
        }
        Ok(())
    }

    /// Replaces the descriptors by those that a control plane sent.
    ///
    /// # Errors
    /// Returns an error if a limit is invalid or cannot be prepared. The active descriptors are
    /// unchanged then.
    pub fn reload_descriptors(&self, tree: Tree) -> Result<(), String> {
        let (config, capacity) = &self.envoy;
        tree.check(config.algorithm)
            .map_err(|error| error.to_string())?;
        let tree = Arc::new(tree);
        let shares = self.engine.shares_stores();
        let before = self.descriptors.load_full();
        let before = before.as_deref();
        let plan = descriptors::plan::DescriptorsPlan::new(config, tree, *capacity, shares, before);
        let plan = plan.map_err(|error| error.to_string())?;
        let limits: Vec<_> = plan.limits().collect();
        let ids = self.known_from_plane.prepare(&self.engine, &limits);
        let mut ids = ids.map_err(why_not_prepared)?.into_iter();
        let descriptors = plan.finish(&mut ids, &self.metrics.outcomes, &self.descriptor_records);
        self.descriptors.store(Some(Arc::new(descriptors)));
        Ok(())
    }

    /// Returns the active rules. Callers load them once for each batch of requests.
    pub fn rules(&self) -> arc_swap::Guard<Arc<ActiveRules>> {
        self.rules.load()
    }

    /// Returns the engine that stores the clients' state.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the rule for a text in a request, and creates it on first use.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the server does not allow rules as text, the text is not a valid
    /// rule, or too many such rules exist.
    pub fn inline_rule(&self, text: &str) -> Result<Arc<ActiveRule>, AskError> {
        self.inline.get(text, &self.engine, &self.metrics.outcomes)
    }

    /// Decides a request of Envoy. A request that cannot be decided before `deadline` is denied if a
    /// rule for one of its descriptors denies on errors, or if the engine's policy denies.
    ///
    /// # Errors
    /// Returns an [`AskError`] if there are no descriptors, the request is invalid, or the engine
    /// fails.
    pub async fn should_rate_limit(
        &self,
        request: &RateLimitRequest,
        mode: Mode,
        deadline: Option<Instant>,
    ) -> Result<RateLimitResponse, AskError> {
        let descriptors = self.descriptors.load();
        let descriptors = descriptors.as_ref().ok_or(AskError::NotConfigured)?;
        let rules = self.rules.load();
        // The future is pinned on the stack, since moving it would copy many bytes.
        let clock = self.clock.0.as_ref();
        let answer = pin!(descriptors.answer(&self.engine, &rules, clock, request, mode));
        let answer = match deadline.filter(|_| self.engine.waits()) {
            None => answer.await,
            Some(deadline) => {
                let decided = descriptors::in_time(answer, deadline).await;
                decided.unwrap_or_else(|_| {
                    let passes = self.engine.passes_undecided()
                        && !descriptors.denies_on_error(&self.engine, &rules, request);
                    if passes {
                        self.metrics.unjudged.count(PassReason::Late);
                    }
                    Ok(descriptors::undecided(request, passes))
                })
            }
        };
        let is_limited = |answer: &RateLimitResponse| {
            answer
                .statuses
                .iter()
                .any(|status| status.current_limit.is_some())
        };
        if answer.as_ref().is_ok_and(|answer| !is_limited(answer))
            && !descriptors.tree.has_domain(&request.domain)
        {
            self.hints.unknown_domain(&request.domain);
        }
        answer
    }

    /// Logs that a proxy's question got an error in place of a verdict, and counts it.
    pub fn refused_question(&self, why: &str) {
        self.metrics.unjudged.count(PassReason::Refused);
        self.hints.refused(self.clock.0.now(), why);
    }

    /// Reserves an estimate under the limits of descriptors. Returns true if the request is allowed,
    /// and the id of the reservation, if any limit counts the request.
    ///
    /// # Errors
    /// Returns an [`AskError`] if there are no descriptors, the request is invalid, or the engine
    /// fails.
    pub async fn reserve_descriptors(
        &self,
        request: &RateLimitRequest,
        terms: HoldTerms,
    ) -> Result<(bool, Option<HoldId>), AskError> {
        let descriptors = self.descriptors.load_full();
        let rules = self.rules.load_full();
        let descriptors = descriptors.as_ref().ok_or(AskError::NotConfigured)?;
        let clock = self.clock.0.as_ref();
        descriptors
            .reserve(&self.engine, &rules, clock, request, terms)
            .await
    }

    /// Returns the numbers of requests that passed without a verdict, each with the name of the
    /// reason.
    pub fn passed_unjudged(&self) -> [(&'static str, u64); PassReason::ALL.len()] {
        PassReason::ALL.map(|reason| {
            let by_engine = if reason == PassReason::RuleFailed {
                self.engine.unjudged()
            } else {
                0
            };
            (reason.name(), self.metrics.unjudged.get(reason) + by_engine)
        })
    }

    /// Returns the metrics' counters of requests by descriptor.
    pub fn descriptor_counts(&self) -> &CountsOf {
        &self.descriptor_records.counts
    }

    /// Returns the number of limits that descriptors can meet.
    pub fn descriptor_limits(&self) -> usize {
        self.descriptors
            .load()
            .as_ref()
            .map_or(0, |descriptors| descriptors.tree.limits().len())
    }

    /// Returns the usage of the stores of descriptors with wildcards, and the number of clients that they are
    /// sized for; `None` if there are none in memory.
    pub fn descriptor_usage(&self) -> Option<((usize, u64), usize)> {
        let usage = self.descriptors.load().as_ref()?.usage(&self.engine)?;
        Some((usage, self.envoy.1))
    }

    /// Returns the metrics of descriptors under the names of envoyproxy/ratelimit; the list is
    /// empty if the configuration does not enable them.
    pub fn descriptor_metrics(&self) -> Vec<Family> {
        let asked = self
            .descriptors
            .load()
            .as_ref()
            .is_some_and(|d| d.config.metrics);
        if asked {
            self.descriptor_records.counts.families(&self.metrics)
        } else {
            Vec::new()
        }
    }

    /// Decides a call of the command `CL.THROTTLE`. With Redis, all servers share the state of its
    /// keys.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the engine fails or cannot count exactly with the call's
    /// parameters.
    pub async fn throttle(&self, key: &[u8], call: Call) -> Result<Throttled, AskError> {
        Ok(self.engine.throttle(&self.throttle_key(key), call).await?)
    }

    /// Deletes the state of a key of `CL.THROTTLE`. Returns true if there was one.
    ///
    /// # Errors
    /// Returns an error if the engine is unavailable.
    pub async fn delete_throttle(&self, key: &[u8]) -> Result<bool, AskError> {
        Ok(self.engine.delete_throttle(&self.throttle_key(key)).await?)
    }

    /// Returns a key of `CL.THROTTLE` as the engine stores it. In memory only the hash of a key is
    /// stored, so a long key needs no digest: the hash covers the whole key.
    fn throttle_key<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        if self.engine.waits() {
            key::bounded(key)
        } else {
            key.into()
        }
    }
}

/// Prepares the rules and the descriptors of a configuration. The engine prepares all of their
/// limits, or none of them if there is an error. `known` are the limits so far, and the descriptors in force.
fn prepare(
    config: &Config,
    engine: &Engine,
    (known, descriptors): (&Known, Option<&Descriptors>),
    kept: RuleRecords<'_>,
    records: &Arc<DescriptorRecords>,
) -> Result<(ActiveRules, Option<Descriptors>), EngineError> {
    let rules = rules::RulesPlan::new(config);
    let descriptors = descriptors::plan::DescriptorsPlan::of_config(config, descriptors)?;
    let limits = rules
        .limits()
        .chain(descriptors.iter().flat_map(|plan| plan.limits()));
    let mut ids = known
        .prepare(engine, &limits.collect::<Vec<_>>())?
        .into_iter();
    let rules = rules.finish(&mut ids, kept);
    engine.set_on_error(&rules.verdicts_on_error());
    Ok((
        rules,
        descriptors.map(|plan| plan.finish(&mut ids, kept.outcomes, records)),
    ))
}
