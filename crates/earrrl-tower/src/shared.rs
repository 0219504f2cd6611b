//! What the clones of a layer share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use earrrl::{Cost, Engine, EngineError, MemoryEngine, Mode, Rule, RuleId};
use http::{Response, StatusCode};

use crate::asked::{Asked, AskedOf, Rules};
use crate::event::Event;
use crate::known::Known;
use crate::response::Denial;

/// A layer's engine, rules and settings.
pub(crate) struct Shared<E> {
    pub(crate) engine: E,
    pub(crate) rules: Rules,
    pub(crate) known: ArcSwap<Vec<Known>>,
    /// The ids of all that are known; a changed rule keeps its own.
    ids: Vec<RuleId>,
    /// Whether of a request within its limit nobody is told anything, so that no figures are needed.
    silent: bool,
    /// Whether some rule charges what is known only after the decision.
    pub(crate) charges_later: bool,
    pub(crate) settings: Settings,
    /// The engine that decides while the other fails, and the rules' ids there.
    pub(crate) local: Option<(MemoryEngine, ArcSwap<Vec<Known>>)>,
    pub(crate) failing: AtomicBool,
    held: AtomicUsize,
}

pub(crate) struct Settings {
    pub(crate) status: StatusCode,
    pub(crate) headers_on_allowed: bool,
    pub(crate) x_rate_limit: bool,
    pub(crate) always_verdict: bool,
    pub(crate) max_held: usize,
    pub(crate) on_failure: OnFailure,
    pub(crate) respond: Option<Respond>,
    pub(crate) hook: Option<Hook>,
}

impl Settings {
    /// Whether anybody is told of requests within their limits.
    fn tells_of_allowed(&self) -> bool {
        self.headers_on_allowed || self.always_verdict || self.hook.is_some()
    }
}

pub(crate) type Respond = Box<dyn Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync>;
pub(crate) type Hook = Box<dyn Fn(&Event<'_>) + Send + Sync>;

/// What becomes of requests while the engine fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// They pass.
    #[default]
    Allow,
    /// They are answered 503.
    Deny,
    /// They are judged by this process alone, in tables for a number of clients of each rule.
    Local(usize),
}

impl<E: Engine> Shared<E> {
    pub(crate) fn new(
        engine: E,
        rules: Rules,
        known: Vec<Known>,
        settings: Settings,
    ) -> Result<Self, EngineError> {
        let local = match settings.on_failure {
            OnFailure::Local(capacity) => Some(local_engine(capacity, &known, settings.status)?),
            _ => None,
        };
        let ids = known.iter().map(|known| known.id).collect();
        let charges_later = rules.iter().any(|(rule, _)| rule.settled || rule.cost_after.is_some());
        let silent = !settings.tells_of_allowed() && !charges_later;
        let known = ArcSwap::from_pointee(known);
        let (failing, held) = (AtomicBool::new(false), AtomicUsize::new(0));
        Ok(Self {
            engine,
            rules,
            known,
            ids,
            silent,
            charges_later,
            settings,
            local,
            failing,
            held,
        })
    }

    /// Charges a request and tells that it may pass, where there is nothing else to be known of it.
    #[inline]
    pub(crate) fn admits_at_once(&self, asked: &Asked) -> bool {
        self.silent
            && !self.failing.load(Ordering::Relaxed)
            && asked.only_charge(&self.ids).is_some_and(|charge| self.engine.admit_at_once(&charge))
    }

    /// Gives a rule or a plan other parameters; its clients keep their history where the algorithm
    /// stays.
    pub(crate) fn change(&self, name: &str, rule: &Rule) -> Result<(), EngineError> {
        let status = self.settings.status;
        replace(&self.engine, &self.known, name, rule, status)?;
        match &self.local {
            Some((engine, known)) => replace(engine, known, name, rule, status),
            None => Ok(()),
        }
    }

    /// Charges a request afterwards, each rule at most its `max_cost`.
    pub(crate) fn charge(&self, asked: &Asked, cost: impl Fn(&AskedOf) -> Cost) -> E::Decide {
        let known = self.known.load();
        let charges = asked.each().map(|(_, of)| {
            let cost = cost(of).min(of.known(&known).rule.max_cost());
            asked.charge(&known, of, cost)
        });
        let charges: smallvec::SmallVec<[_; 2]> = charges.collect();
        self.engine.decide(&charges, Mode::Charge, None)
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        if let Some(hook) = &self.settings.hook {
            hook(event);
        }
    }

    /// A place among the requests that are held back; `None` if there is none.
    pub(crate) fn hold(self: &Arc<Self>) -> Option<Held<E>> {
        let most = self.settings.max_held;
        let below = |held: usize| (held < most).then_some(held + 1);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).ok()?;
        Some(Held(Arc::clone(self)))
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// A request that is held back; dropped when it is let go, or its client leaves.
pub(crate) struct Held<E>(Arc<Shared<E>>);

impl<E> Drop for Held<E> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

fn local_engine(
    capacity: usize,
    known: &[Known],
    status: StatusCode,
) -> Result<(MemoryEngine, ArcSwap<Vec<Known>>), EngineError> {
    let engine = MemoryEngine::new(capacity);
    let engine = engine.map_err(|error| EngineError::Unavailable(error.to_string()))?;
    let here =
        known.iter().map(|known| Known::new(&engine, &known.name, known.rule.clone(), status));
    let here: Vec<Known> = here.collect::<Result<_, _>>()?;
    Ok((engine, ArcSwap::from_pointee(here)))
}

fn replace(
    engine: &impl Engine,
    all: &ArcSwap<Vec<Known>>,
    name: &str,
    rule: &Rule,
    status: StatusCode,
) -> Result<(), EngineError> {
    let changed = Known::new(engine, name, rule.clone(), status)?;
    all.rcu(|known| {
        let mut known = Vec::clone(known);
        known.iter_mut().filter(|known| &*known.name == name).for_each(|k| *k = changed.clone());
        known
    });
    Ok(())
}
