//! The rate limit service that all protocols use: the active rules, and the decisions on requests
//! ([`ask`]).

pub mod answer;
pub mod ask;
pub mod attributes;
pub mod changes;
pub mod descriptor_counts;
pub mod descriptor_limits;
mod descriptors;
pub mod error;
pub mod hints;
pub mod key;
pub mod limit;
mod matching;
pub mod memory_check;
pub mod names;
pub mod override_table;
mod overrides;
pub mod reports;
pub mod reserve;
pub mod rule;
pub mod rules;
pub mod run_time;
mod survey;

use std::fmt;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use earrrl::internal::table::Swept;
use earrrl::{Clock, EngineError, Nanos};
use tokio::sync::broadcast;

use crate::config::access::{Access, Forbidden};
use crate::config::envoy::tree::Tree;
use crate::config::{Config, EnvoyConfig};
use crate::engine::{Engine, Memory, why_not_prepared};
use crate::metrics::{Family, Metrics, PassReason};
use descriptor_counts::CountsOf;
use descriptor_limits::{DescriptorRecords, Descriptors, DescriptorsPlan};
use error::AskError;
use limit::Known;
use names::{ClientNotice, Notice};
use override_table::RunTimeOverrides;
use rule::{ActiveRule, NamedRule, RuleRecords};
use rules::{ActiveRules, InlineRules};

/// The number of notices that a stream of events may lag behind.
const MAX_NOTICES: usize = 1024;

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
    notices: broadcast::Sender<ClientNotice>,
    /// The overrides that were set at run time.
    pub run_time: RunTimeOverrides,
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
        let run_time = RunTimeOverrides::new(&config.engine)?;
        let rules = run_time.lock().with_all(rules, &engine);
        if let Some(memory) = engine.memory() {
            log_swept(memory);
        }
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
            notices: broadcast::Sender::new(MAX_NOTICES),
            run_time,
            envoy: (config.envoy.clone(), config.capacity),
            inline: InlineRules::new(config.server.allow_inline_rules, config.capacity),
        })
    }

    /// Returns the present instant of the clock that decides.
    pub fn now(&self) -> Nanos {
        self.clock.0.now()
    }

    /// Returns a receiver of what is done to single clients from now on.
    pub fn notices(&self) -> broadcast::Receiver<ClientNotice> {
        self.notices.subscribe()
    }

    /// Tells those who follow the events what was done to a client.
    fn tell(&self, rule: &NamedRule, key: &[u8], what: Notice) {
        if self.notices.receiver_count() > 0 {
            let hash = self.engine.hash(key);
            let client = rule.directory.named(&rule.name, hash, key);
            // A receiver that has left needs no events.
            let _ = self.notices.send(ClientNotice { client, what });
        }
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
        let mut run_time = self.run_time.lock();
        let rules = run_time.with_all(rules, &self.engine);
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
        let plan = DescriptorsPlan::new(config, tree, *capacity, shares, before);
        let plan = plan.map_err(|error| error.to_string())?;
        let limits: Vec<_> = plan.limits.iter().collect();
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

    /// Returns the rule whose text a request has in the place of a name. Only a text has spaces.
    ///
    /// # Errors
    /// Returns an error if it is the name of no rule, the access is to some rules only, or the server does not
    /// accept the rule.
    #[cold]
    pub fn inline_rule<E: From<AskError> + From<Forbidden>>(
        &self,
        access: &Access,
        text: &[u8],
    ) -> Result<&'static ActiveRule, E> {
        let inline = std::str::from_utf8(text).ok();
        let inline = inline.filter(|text| text.contains(' '));
        let inline = inline.ok_or_else(|| AskError::unknown_rule(text))?;
        access.permit_all_rules()?;
        Ok(self
            .inline
            .get(inline, &self.engine, &self.metrics.outcomes)?)
    }

    /// Logs that a proxy's question got an error in place of a verdict, and counts it.
    pub fn refused_question(&self, why: &str) {
        self.metrics.unjudged.count(PassReason::Refused);
        self.hints.refused(self.clock.0.now(), why);
    }

    /// Returns the numbers of requests that passed without a verdict, each with the name of the
    /// reason.
    pub fn passed_unjudged(&self) -> [(&'static str, u64); PassReason::ALL.len()] {
        PassReason::ALL.map(|reason| {
            let redis = self.engine.redis();
            let redis = redis.filter(|_| reason == PassReason::RuleFailed);
            let by_engine = redis.map_or(0, |redis| redis.status().counts.unjudged);
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
}

/// Logs the entries that were removed from state files when they were opened.
fn log_swept(memory: &Memory) {
    for (rule, swept) in memory.swept() {
        let Swept {
            claims,
            ahead,
            duplicates,
            ..
        } = swept;
        tracing::warn!(
            rule,
            claims,
            ahead,
            duplicates,
            "removed entries from a state file"
        );
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
    let descriptors = DescriptorsPlan::of_config(config, descriptors)?;
    let limits = rules
        .limits()
        .chain(descriptors.iter().flat_map(|plan| &plan.limits));
    let mut ids = known
        .prepare(engine, &limits.collect::<Vec<_>>())?
        .into_iter();
    let rules = rules.finish(&mut ids, kept);
    Ok((
        rules,
        descriptors.map(|plan| plan.finish(&mut ids, kept.outcomes, records)),
    ))
}
