//! [`RedisEngine`]: the seam, and what a decision goes through.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use earrrl::internal::{merge_charges, restore_places};
use earrrl::{
    Charge, Clock, Cost, Decision, Engine, EngineError, Mode, Nanos, Rule, RuleId, SystemClock,
};
use tokio::task::JoinHandle;

use crate::algorithm::Adjustment;
use crate::options::{Consistency, Options};
use crate::request::Request;
use crate::shared::Shared;
use crate::status::{Status, count};
use crate::{alone, near, reply, supervisor};

type Waited<T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send>>;

/// An answer, there already or under way.
#[derive(Debug)]
pub struct Answer<T>(Stage<T>);

enum Stage<T> {
    There(Option<Result<T, EngineError>>),
    UnderWay(Waited<T>),
}

impl<T> std::fmt::Debug for Stage<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::There(_)) { "There" } else { "UnderWay" })
    }
}

impl<T> Answer<T> {
    fn there(answer: Result<T, EngineError>) -> Self {
        Self(Stage::There(Some(answer)))
    }

    fn under_way(answer: impl Future<Output = Result<T, EngineError>> + Send + 'static) -> Self {
        Self(Stage::UnderWay(Box::pin(answer)))
    }
}

impl<T: Unpin> Future for Answer<T> {
    type Output = Result<T, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Stage::There(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            Stage::UnderWay(answer) => answer.as_mut().poll(context),
        }
    }
}

/// Rules whose clients' records are kept in Redis or Valkey, for every process that uses it alike.
///
/// See the crate's documentation.
#[derive(Debug)]
pub struct RedisEngine {
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
}

impl RedisEngine {
    /// An engine that begins to connect now, in a task of the present tokio runtime, and goes on
    /// trying for as long as it lives.
    ///
    /// # Errors
    /// An option that can't be; that Redis is not there is none.
    pub fn new(options: Options) -> Result<Self, EngineError> {
        Self::with_clock(options, Arc::new(SystemClock::new()))
    }

    /// As [`RedisEngine::new`], with another clock for the time while Redis is gone.
    ///
    /// # Errors
    /// An invalid option.
    pub fn with_clock(options: Options, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        options.check()?;
        let shared = Arc::new(Shared::new(options, clock)?);
        let supervisor = tokio::spawn(supervisor::run(shared.clone()));
        let exchange = tokio::spawn(near::rounds::run(shared.clone()));
        Ok(Self { shared, tasks: [supervisor, exchange] })
    }

    /// As [`RedisEngine::new`], and waits until Redis decides, or for `patience`.
    ///
    /// # Errors
    /// An invalid option.
    pub async fn connect(options: Options, patience: Duration) -> Result<Self, EngineError> {
        let engine = Self::new(options)?;
        engine.ready(patience).await;
        Ok(engine)
    }

    /// As [`Engine::prepare`], with room for `capacity` clients of this rule in this node's own table.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_with(
        &self,
        name: &str,
        rule: &Rule,
        capacity: usize,
    ) -> Result<RuleId, EngineError> {
        self.prepare_as(name, rule, capacity, Consistency::Exact)
    }

    /// As [`RedisEngine::prepare_with`], with a choice of who decides.
    ///
    /// # Errors
    /// As there; or that the rule is none to be [near](crate::check_near).
    pub fn prepare_as(
        &self,
        name: &str,
        rule: &Rule,
        capacity: usize,
        consistency: Consistency,
    ) -> Result<RuleId, EngineError> {
        self.prepare_all(&[(name, rule, capacity, consistency)]).map(|ids| ids[0])
    }

    /// As [`RedisEngine::prepare_as`], for several rules at once: all of them, or on an error none.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_all(
        &self,
        wanted: &[(&str, &Rule, usize, Consistency)],
    ) -> Result<Vec<RuleId>, EngineError> {
        self.shared.prepare(wanted)
    }

    /// Waits until Redis decides, for at most `patience`; answers whether it does.
    pub async fn ready(&self, patience: Duration) -> bool {
        let mut settled = self.shared.settled.subscribe();
        tokio::time::timeout(patience, settled.wait_for(|settled| *settled)).await.is_ok()
    }

    /// How decisions are made at present, and what has happened so far.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Where Redis is, and how it is used.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Other addresses, or the same with another user or password, from the next connection on.
    pub fn set_urls(&self, urls: Vec<String>) {
        self.shared.set_urls(urls);
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn request(
        &self,
        charges: &[Charge<'_>],
        mode: Mode,
        now: Option<Nanos>,
    ) -> Result<Request, EngineError> {
        let rules: Vec<_> = charges.iter().filter_map(|c| self.shared.rules.get(c.rule)).collect();
        let rule = |id| rules.iter().find(|known| known.id == id).map(|known| &known.rule);
        let merged = merge_charges(charges, rule)?;
        let asked = merged.iter().filter_map(|(place, charge)| {
            let rule = rules.iter().find(|known| known.id == charge.rule)?.clone();
            Some(self.shared.asked(rule, charge, *place))
        });
        Ok(Request { asked: asked.collect(), now, mode })
    }

    fn run(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Answer<Decision> {
        let given = self.shared.given(now);
        if let Some(decision) = near::decide::at_once(&self.shared, charges, mode, given) {
            return Answer::there(Ok(decision));
        }
        match self.request(charges, mode, given) {
            Ok(request) => Answer::under_way(decide(self.shared.clone(), Arc::new(request))),
            Err(error) => Answer::there(Err(error)),
        }
    }
}

impl Drop for RedisEngine {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Asks Redis within the deadline, or decides without it.
async fn decide(shared: Arc<Shared>, request: Arc<Request>) -> Result<Decision, EngineError> {
    if let Some(decision) = near::decide::ask(&shared, &request).await {
        return Ok(decision);
    }
    let answer = shared.ask(&request).await;
    near::decide::decided_elsewhere(&shared, &request);
    let mut decision = match answer {
        Ok(seen) => {
            count(&shared.counters.shared);
            let (decision, states) = reply::decide(&request.rules(), &seen, request.mode);
            alone::adopt(&shared, &request, &seen, states);
            decision
        }
        Err(missed) => {
            count(&shared.counters.alone);
            alone::decide(&shared, &request, missed).await?
        }
    };
    restore_places(&mut decision, &request.places());
    Ok(decision)
}

impl Engine for RedisEngine {
    type Decide = Answer<Decision>;
    type Done = Answer<()>;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        self.prepare_with(name, rule, self.shared.options.local_capacity)
    }

    fn prepared(&self, name: &str) -> Option<Rule> {
        let all = self.shared.rules.all();
        all.iter().find(|known| known.name == name).map(|known| known.rule.clone())
    }

    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide {
        self.run(charges, mode, now)
    }

    fn refund(
        &self,
        charge: &Charge<'_>,
        charged_at: Option<Nanos>,
        now: Option<Nanos>,
    ) -> Self::Done {
        let Some(rule) = self.shared.rules.get(charge.rule) else {
            return Answer::there(Err(EngineError::UnknownRule(charge.rule)));
        };
        let asked = self.shared.asked(rule, charge, 0);
        let (shared, now) = (self.shared.clone(), self.shared.given(now));
        Answer::under_way(async move {
            near::decide::refresh(&shared, &asked, now).await;
            let back = Adjustment::take_back(charged_at, asked.cost);
            match shared.adjust(&asked, back, now).await {
                Ok(()) => {
                    near::decide::refresh(&shared, &asked, now).await;
                    alone::refunded(&shared, &asked, charged_at, now)
                }
                Err(_) if near::decide::take_back(&shared, &asked, charged_at, now) => Ok(()),
                Err(fault) => alone::refund(&shared, &asked, charged_at, now, fault),
            }
        })
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        let Some(known) = self.shared.rules.get(rule) else {
            return Answer::there(Err(EngineError::UnknownRule(rule)));
        };
        let charge = Charge { rule, key, cost: Cost::ZERO };
        let asked = self.shared.asked(known, &charge, 0);
        let shared = self.shared.clone();
        Answer::under_way(async move { shared.reset(&asked).await.map_err(EngineError::from) })
    }
}
