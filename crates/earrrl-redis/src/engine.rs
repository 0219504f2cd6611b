//! The public engine, and the steps of a decision.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use earrrl::internal::{Reserving, lock, merge_charges};
use earrrl::{
    Actual, Charge, Clock, Committed, Cost, Decision, Engine, EngineError, HoldId, HoldTerms,
    Holding, Mode, Nanos, Rule, RuleId, SystemClock,
};
use futures_util::future::{BoxFuture, Either};
use tokio::task::JoinHandle;

use crate::deliver::{hand_over, take_back};
use crate::hold_format::is_of_redis;
use crate::options::{Consistency, Options};
use crate::request::Request;
use crate::shared::Shared;
use crate::status::{EngineMode, Status};
use crate::{holds, near, outage, supervisor};

/// The future of a decision, which may be complete already.
pub type Answer<T> =
    Either<Ready<Result<T, EngineError>>, BoxFuture<'static, Result<T, EngineError>>>;

fn there<T>(answer: Result<T, EngineError>) -> Answer<T> {
    Either::Left(ready(answer))
}

fn under_way<T>(
    answer: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Answer<T> {
    Either::Right(Box::pin(answer))
}

/// An engine that keeps clients' records in Redis or Valkey. All processes that use the same server
/// share them.
///
/// See the crate's documentation.
///
/// ```
/// # use earrrl_redis::{Options, RedisEngine};
/// # use earrrl::{Charge, Cost, Engine, Mode};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = Options::new("redis://127.0.0.1:1"); // where no Redis is
/// let engine = RedisEngine::new(options)?;
/// let login = engine.prepare("login", &"recent-average 10/h half-life=1h strict".parse()?)?;
/// let charge = Charge { rule: login, key: b"192.0.2.7", cost: Cost::ONE };
/// // This process decides by its own table until Redis is reached.
/// let decision = engine.decide(&[charge], Mode::Check, None).await?;
/// assert!(decision.allowed);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisEngine {
    shared: Arc<Shared>,
    supervisor: JoinHandle<()>,
}

impl RedisEngine {
    /// Returns an engine that connects in a task of the present tokio runtime, and reconnects as
    /// long as it lives. If Redis is not reachable, this is no error.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut options = Options::new("redis://127.0.0.1:6379");
    /// assert!(RedisEngine::new(options.clone()).is_ok());
    /// options.prefix = "{limits}".to_owned();
    /// assert!(RedisEngine::new(options).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`EngineError::Invalid`] if an option is invalid.
    pub fn new(options: Options) -> Result<Self, EngineError> {
        Self::with_clock(options, Arc::new(SystemClock::new()))
    }

    /// Returns an engine whose decisions without Redis use the given clock.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use earrrl::{ManualClock, Nanos};
    /// use std::sync::Arc;
    /// let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_700_000_000)));
    /// let engine = RedisEngine::with_clock(Options::new("redis://127.0.0.1:6379"), clock.clone())?;
    /// # let _ = engine;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if an option is invalid.
    pub fn with_clock(options: Options, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        options.check()?;
        let shared = Arc::new(Shared::new(options, clock)?);
        let supervisor = tokio::spawn(supervisor::run(shared.clone()));
        Ok(Self { shared, supervisor })
    }

    /// Returns an engine after waiting until Redis is ready to decide, for at most `timeout`.
    ///
    /// ```no_run
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// let options = Options::new("redis://127.0.0.1:6379");
    /// let engine = RedisEngine::connect(options, Duration::from_secs(1)).await?;
    /// println!("{}", engine.status().mode.name());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if an option is invalid.
    pub async fn connect(options: Options, timeout: Duration) -> Result<Self, EngineError> {
        let engine = Self::new(options)?;
        engine.ready(timeout).await;
        Ok(engine)
    }

    /// Prepares a rule, with memory for `capacity` clients in this node's own table.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use earrrl::Engine;
    /// let engine = RedisEngine::new(Options::new("redis://127.0.0.1:6379"))?;
    /// engine.prepare_with("login", &"gcra 1/m burst=5".parse()?, 1_000_000)?;
    /// assert_eq!(engine.prepared("login"), Some("gcra 1/m burst=5".parse()?));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if Redis does not support the rule, the name is invalid, or there is no
    /// memory for the table.
    pub fn prepare_with(
        &self,
        name: &str,
        rule: &Rule,
        capacity: usize,
    ) -> Result<RuleId, EngineError> {
        self.prepare_as(name, rule, capacity, Consistency::Exact)
    }

    /// Prepares a rule with the given consistency: each request is decided in Redis (exact), or Redis grants several
    /// units at once (near).
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use earrrl_redis::Consistency;
    /// let engine = RedisEngine::new(Options::new("redis://127.0.0.1:6379"))?;
    /// engine.prepare_as("api", &"gcra 100/s burst=500".parse()?, 100_000, Consistency::Near)?;
    /// let mail = "exponential 500/1d".parse()?;
    /// assert!(engine.prepare_as("mail", &mail, 100_000, Consistency::Near).is_err());
    /// engine.prepare_as("mail", &mail, 100_000, Consistency::Exact)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error as [`RedisEngine::prepare_with`] does, or if the rule cannot be [near](crate::check_near).
    pub fn prepare_as(
        &self,
        name: &str,
        rule: &Rule,
        capacity: usize,
        consistency: Consistency,
    ) -> Result<RuleId, EngineError> {
        self.prepare_all(&[(name, rule, capacity, consistency)])
            .map(|ids| ids[0])
    }

    /// Prepares several rules at once. On an error, none is prepared.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use earrrl_redis::Consistency::{Exact, Near};
    /// let engine = RedisEngine::new(Options::new("redis://127.0.0.1:6379"))?;
    /// let (login, api) = ("gcra 1/m burst=5".parse()?, "gcra 100/s burst=500".parse()?);
    /// let ids = engine.prepare_all(&[("login", &login, 10_000, Exact), ("api", &api, 10_000, Near)])?;
    /// assert_eq!(ids.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the first rule that has one.
    pub fn prepare_all(
        &self,
        wanted: &[(&str, &Rule, usize, Consistency)],
    ) -> Result<Vec<RuleId>, EngineError> {
        let before = self.shared.rules.all();
        let ids = self.shared.prepare(None, wanted)?;
        let after = self.shared.rules.all();
        for (old, new) in before.iter().zip(after.iter()) {
            let tables = old.near.as_ref().zip(new.near.as_ref());
            if tables.is_none_or(|(old, new)| !Arc::ptr_eq(old, new)) {
                near::give_back(&self.shared, old);
            }
        }
        Ok(ids)
    }

    /// Sets rules' verdicts on requests that Redis does not answer, in place of [`WhenGone::Allow`]
    /// and [`WhenGone::Deny`]: true to allow, false to deny, `None` to follow the policy. The
    /// verdicts have no effect with [`WhenGone::Local`], where this node's own table decides.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use earrrl::{Charge, Cost, Engine, Mode};
    /// use earrrl_redis::WhenGone;
    /// let mut options = Options::new("redis://127.0.0.1:1"); // where no Redis is
    /// options.when_gone = WhenGone::Allow;
    /// let engine = RedisEngine::new(options)?;
    /// let login = engine.prepare("login", &"gcra 1/m burst=5".parse()?)?;
    /// engine.set_verdicts_without_redis(&[(login, Some(false))]);
    /// let charge = Charge { rule: login, key: b"192.0.2.7", cost: Cost::ONE };
    /// assert!(!engine.decide(&[charge], Mode::Check, None).await?.allowed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`WhenGone::Allow`]: crate::WhenGone::Allow
    /// [`WhenGone::Deny`]: crate::WhenGone::Deny
    /// [`WhenGone::Local`]: crate::WhenGone::Local
    pub fn set_verdicts_without_redis(&self, verdicts: &[(RuleId, Option<bool>)]) {
        self.shared.rules.set_without_redis(verdicts);
    }

    /// Waits until Redis is ready to decide, for at most `timeout`. Returns true if it is ready.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// let engine = RedisEngine::new(Options::new("redis://127.0.0.1:1"))?; // where no Redis is
    /// assert!(!engine.ready(Duration::from_millis(10)).await);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ready(&self, timeout: Duration) -> bool {
        let mut published = self.shared.connection.published.subscribe();
        let is_shared = published.wait_for(|mode| *mode == EngineMode::Shared);
        tokio::time::timeout(timeout, is_shared).await.is_ok()
    }

    /// Returns how decisions are made at present, and the engine's counters.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use earrrl_redis::EngineMode;
    /// let engine = RedisEngine::new(Options::new("redis://127.0.0.1:1"))?; // where no Redis is
    /// let status = engine.status();
    /// assert_eq!((status.mode, status.counts.shared), (EngineMode::Connecting, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Returns the engine's options.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = RedisEngine::new(Options::new("redis://127.0.0.1:6379"))?;
    /// assert_eq!(engine.options().prefix, "earrrl");
    /// # Ok(())
    /// # }
    /// ```
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Sets the addresses and credentials for the next connection.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = RedisEngine::new(Options::new("redis://limits:old@127.0.0.1:6379"))?;
    /// engine.set_urls(vec!["redis://limits:new@127.0.0.1:6379".to_owned()]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_urls(&self, urls: Vec<String>) {
        self.shared
            .connection
            .change_options(|options| options.urls = urls);
    }

    /// Sets the user and the password at the Sentinels for the next connection.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = RedisEngine::new(Options::sentinel("limits", ["redis://10.0.0.5:26379"]))?;
    /// engine.set_sentinel_login(None, Some("new".to_owned()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_sentinel_login(&self, user: Option<String>, password: Option<String>) {
        self.shared.connection.change_options(|options| {
            options.sentinel_user = user;
            options.sentinel_password = password;
        });
    }

    /// Sends what Redis lacks of this node's counts, and gives back the units that it has not spent, for at most
    /// `timeout`. Call it once, after the last decision
    /// and before the engine is dropped, which loses what was not sent.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// let engine = RedisEngine::new(Options::new("redis://127.0.0.1:6379"))?;
    /// // …
    /// engine.flush(Duration::from_secs(5)).await;
    /// drop(engine);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn flush(&self, timeout: Duration) {
        let all = async {
            for rule in self.shared.rules.all().iter() {
                near::give_back(&self.shared, rule);
            }
            for group in self.shared.connection.breakers.groups() {
                if let Ok(link) = self.shared.connection.distant_link(group) {
                    hand_over(&self.shared, &link, group).await.ok();
                }
            }
        };
        tokio::time::timeout(timeout, all).await.ok();
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
        let rules = self.shared.rules.all();
        let rule = |id: RuleId| rules.get(id.0 as usize).map(|known| &known.rule);
        let merged = merge_charges(charges, rule)?;
        let keyed = merged.iter().filter_map(|(place, charge)| {
            let rule = rules.get(charge.rule.0 as usize)?.clone();
            Some(self.shared.keyed(rule, charge.key, charge.cost, *place))
        });
        Ok(Request {
            charges: keyed.collect(),
            now,
            mode,
            patience: self.shared.options.deadline,
            hold: None,
            units: None,
        })
    }
}

/// Reservations.
impl RedisEngine {
    /// Checks a request whose cost is only estimated, and reserves the estimate under all rules if
    /// it is allowed, as [`MemoryEngine::hold`](earrrl::MemoryEngine::hold) does. Any node can
    /// commit the reservation.
    ///
    /// ```no_run
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use earrrl::{Actual, Charge, Cost, Engine, HoldTerms};
    /// let engine = RedisEngine::new(Options::new("redis://127.0.0.1:6379"))?;
    /// let rule = engine.prepare("tokens", &"token-bucket 100000 refill=100000/1d".parse()?)?;
    /// let charge = Charge { rule, key: b"alice", cost: Cost::from_units(4096) };
    /// let holding = engine.hold(&[charge], HoldTerms::default(), None).await?;
    /// if let Some(id) = holding.id {
    ///     // … the model answers with 731 tokens …
    ///     engine.commit(id, Actual::All(Cost::from_units(731)), None).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if a charge or the terms are invalid, a rule is near, this node has made as
    /// many reservations as it may, or Redis does not answer. Nothing is reserved then.
    pub async fn hold(
        &self,
        charges: &[Charge<'_>],
        terms: HoldTerms,
        now: Option<Nanos>,
    ) -> Result<Holding, EngineError> {
        self.place_hold(charges, terms, now).await
    }

    /// Corrects the charges of a reservation to the actual cost, exactly once, as
    /// [`MemoryEngine::commit`](earrrl::MemoryEngine::commit) does. Any node may do it.
    ///
    /// A bucket gets less back than in memory if newer reservations of its client have given
    /// something back before, and it could have been full.
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown or expired, or a cost is for a rule that is not
    /// part of the reservation. If Redis does not answer, the
    /// reservation may or may not be committed; a repeated commit is safe.
    pub async fn commit(
        &self,
        id: HoldId,
        actual: Actual<'_>,
        now: Option<Nanos>,
    ) -> Result<Committed, EngineError> {
        self.commit_hold(id, actual, now).await
    }

    /// Prolongs a live reservation: it then expires after `ttl` from now, or sooner if the timeout of
    /// one of its rules of concurrent is shorter.
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown, expired or committed, `ttl` is out of its
    /// bounds, or Redis does not answer.
    pub async fn renew(
        &self,
        id: HoldId,
        ttl: Duration,
        now: Option<Nanos>,
    ) -> Result<(), EngineError> {
        HoldTerms::default().ttl(ttl).check()?;
        let shared = &self.shared;
        let given = shared.clocks.given(now);
        holds::renew(shared, id, ttl, given).await?;
        let expires = shared.clocks.now(given) + ttl;
        lock(&shared.holds).renew(id, expires);
        Ok(())
    }

    /// Returns true if `id` is that of a reservation which any node made, also if that has expired, or was
    /// committed so long ago that Redis has forgotten it.
    ///
    /// ```
    /// # use earrrl::HoldId;
    /// # use earrrl_redis::RedisEngine;
    /// assert!(!RedisEngine::has_issued(HoldId::from_bits(7)));
    /// ```
    #[must_use]
    pub fn has_issued(id: HoldId) -> bool {
        is_of_redis(id)
    }

    /// Returns the rules of a reservation that is live or was committed lately.
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown or expired, or Redis does not answer.
    pub async fn reserved_rules(
        &self,
        id: HoldId,
        now: Option<Nanos>,
    ) -> Result<Vec<RuleId>, EngineError> {
        let shared = &self.shared;
        holds::rules(shared, id, shared.clocks.given(now)).await
    }

    /// Sets the most reservations of this node that may be live at a time; 100 000 by default. One
    /// that another node commits counts until it would have expired.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = RedisEngine::new(Options::new("redis://127.0.0.1:6379"))?;
    /// engine.set_max_reservations(10_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_max_reservations(&self, most: usize) {
        lock(&self.shared.holds).most = most;
    }
}

impl Drop for RedisEngine {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

/// Decides a request in Redis within the deadline, or else without Redis.
async fn decide(shared: Arc<Shared>, request: Arc<Request>) -> Result<Decision, EngineError> {
    if let Some(decision) = near::ask(&shared, &request).await {
        return Ok(decision);
    }
    match outage::by_redis(&shared, &request).await {
        Ok(decision) => Ok(decision),
        Err(failure) => outage::decide(&shared, &request, failure).await,
    }
}

impl Engine for RedisEngine {
    type Decide = Answer<Decision>;
    type Done = Answer<()>;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        self.prepare_with(name, rule, self.shared.options.local_capacity)
    }

    fn prepare_in(&self, store: &str, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        let wanted = (
            name,
            rule,
            self.shared.options.local_capacity,
            Consistency::Exact,
        );
        let ids = self.shared.prepare(Some(store), &[wanted])?;
        Ok(ids[0])
    }

    fn prepared(&self, name: &str) -> Option<Rule> {
        self.shared.local.prepared(name)
    }

    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide {
        let given = self.shared.clocks.given(now);
        if let Some(decision) = near::decide_here(&self.shared, charges, mode, given) {
            return there(Ok(decision));
        }
        let accepted = |request: Request| {
            request
                .charges
                .iter()
                .try_for_each(|charge| charge.rule.accept_mode(mode))?;
            Ok(request)
        };
        match self.request(charges, mode, given).and_then(accepted) {
            Ok(request) => under_way(decide(self.shared.clone(), Arc::new(request))),
            Err(error) => there(Err(error)),
        }
    }

    fn refund(
        &self,
        charge: &Charge<'_>,
        charged_at: Option<Nanos>,
        now: Option<Nanos>,
    ) -> Self::Done {
        let Some(rule) = self.shared.rules.get(charge.rule) else {
            return there(Err(EngineError::UnknownRule(charge.rule)));
        };
        if let Err(error) = rule.accept_mode(Mode::Charge) {
            return there(Err(error));
        }
        let keyed = self.shared.keyed(rule, charge.key, charge.cost, 0);
        let (shared, now) = (self.shared.clone(), self.shared.clocks.given(now));
        under_way(async move {
            near::end_denial(&keyed);
            let taken_back = match shared.connection.link(keyed.group) {
                Ok(_) => take_back(&shared, &keyed, charged_at, now).await,
                Err(fault) => Err(fault),
            };
            outage::refund(&shared, &keyed, charged_at, now, taken_back)
        })
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        let Some(known) = self.shared.rules.get(rule) else {
            return there(Err(EngineError::UnknownRule(rule)));
        };
        let keyed = self.shared.keyed(known, key, Cost::ZERO, 0);
        let shared = self.shared.clone();
        under_way(async move {
            let local = shared.local.reset(rule, &keyed.client);
            local.await.ok();
            shared.ledger.forget(&keyed);
            shared.unsettled.forget(&keyed);
            if let Some(table) = &keyed.rule.near {
                table.forget(&keyed.client);
            }
            let mut delete = redis::cmd("DEL");
            delete.arg(&keyed.key);
            shared.connection.send(keyed.group, &delete).await?;
            Ok(())
        })
    }

    fn place_hold(
        &self,
        charges: &[Charge<'_>],
        terms: HoldTerms,
        now: Option<Nanos>,
    ) -> Reserving<Holding> {
        let request = self.request(charges, Mode::Check, self.shared.clocks.given(now));
        let shared = self.shared.clone();
        let count = charges.len();
        Box::pin(async move { holds::hold(shared, request?, terms, count).await })
    }

    fn commit_hold(
        &self,
        id: HoldId,
        actual: Actual<'_>,
        now: Option<Nanos>,
    ) -> Reserving<Committed> {
        let (shared, given) = (self.shared.clone(), self.shared.clocks.given(now));
        let (same, by_rule) = match actual {
            Actual::All(cost) => (Some(cost), Vec::new()),
            Actual::ByRule(costs) => (None, costs.to_vec()),
        };
        Box::pin(async move {
            let actual = same.map_or(Actual::ByRule(&by_rule), Actual::All);
            holds::commit(&shared, id, actual, given).await
        })
    }
}
