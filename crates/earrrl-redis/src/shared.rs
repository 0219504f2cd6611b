//! What a decision, the supervisor and what runs on in the background share.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use earrrl::{Charge, Clock, Engine as _, EngineError, MemoryEngine, Nanos, Rule, RuleId};
use tokio::sync::{Notify, watch};

use crate::breaker::Breakers;
use crate::key::{Keys, slot};
use crate::ledger::Ledger;
use crate::link::{Fault, Link};
use crate::options::{Options, WhenGone};
use crate::request::Asked;
use crate::rules::{Prepared, Rules};
use crate::script::Scripts;
use crate::status::{Counters, Mode, Status, count};

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) keys: Keys,
    pub(crate) rules: Rules,
    pub(crate) scripts: Scripts,
    pub(crate) breakers: Breakers,
    pub(crate) local: MemoryEngine<Arc<dyn Clock>>,
    pub(crate) ledger: Ledger,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Counters,
    /// Told when there is something for the supervisor to do.
    pub(crate) trouble: Notify,
    /// Whether Redis decides everything.
    pub(crate) settled: watch::Sender<bool>,
    urls: Mutex<Vec<String>>,
    link: RwLock<Option<Link>>,
    last_failure: Mutex<Option<String>>,
    /// The latest microsecond that a caller gave.
    latest: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(options: Options, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        let local = MemoryEngine::with_clock(options.local_capacity, clock.clone());
        Ok(Self {
            keys: Keys::new(&options.prefix, options.clients.clone()),
            rules: Rules::default(),
            scripts: Scripts::new(),
            breakers: Breakers::new(options.cluster, options.failures),
            local: local.map_err(|error| EngineError::Unavailable(error.to_string()))?,
            ledger: Ledger::new(options.local_capacity),
            clock,
            counters: Counters::default(),
            trouble: Notify::new(),
            settled: watch::Sender::new(false),
            urls: Mutex::new(options.urls.clone()),
            link: RwLock::default(),
            last_failure: Mutex::default(),
            latest: AtomicU64::new(0),
            options,
        })
    }

    pub(crate) fn prepare(
        &self,
        name: &str,
        rule: &Rule,
        capacity: usize,
    ) -> Result<RuleId, EngineError> {
        // A table that no decision is made by takes no room.
        let capacity = if self.options.when_gone == WhenGone::Local { capacity } else { 1 };
        let latest = self.latest.load(Ordering::Acquire);
        let since = if latest == 0 { self.clock.now() } else { Nanos::new(latest) };
        let id = self
            .rules
            .prepare(name, rule, since, || self.local.prepare_with(name, rule, capacity))?;
        self.trouble.notify_one();
        Ok(id)
    }

    /// A caller's time in whole microseconds, never before the latest one that was given.
    pub(crate) fn given(&self, now: Option<Nanos>) -> Option<Nanos> {
        let now = now?.get() / 1000 * 1000;
        Some(Nanos::new(self.latest.fetch_max(now, Ordering::AcqRel).max(now)))
    }

    /// The time to use where Redis can't be asked.
    pub(crate) fn now(&self, given: Option<Nanos>) -> Nanos {
        given.unwrap_or_else(|| self.clock.now())
    }

    /// The breaker's group of a key.
    pub(crate) fn group(&self, key: &[u8]) -> usize {
        self.breakers.group(if self.options.cluster { slot(key) } else { 0 })
    }

    /// A charge as it goes to Redis.
    pub(crate) fn asked(&self, rule: Arc<Prepared>, charge: &Charge<'_>, place: usize) -> Asked {
        let key = self.keys.record(charge.key, &rule.name);
        let slot = if self.options.cluster { slot(&key) } else { 0 };
        let group = self.breakers.group(slot);
        Asked { rule, client: charge.key.into(), cost: charge.cost, place, key, slot, group }
    }

    /// The connection to use for a group of slots, unless that is left alone.
    pub(crate) fn link(&self, group: usize) -> Result<Link, Fault> {
        if self.breakers.is_open(group) {
            return Err(Fault::Left);
        }
        self.any_link().ok_or(Fault::Left)
    }

    /// The connection, also while it is not trusted.
    pub(crate) fn any_link(&self) -> Option<Link> {
        self.link.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_link(&self, link: Link) {
        *self.link.write().unwrap_or_else(PoisonError::into_inner) = Some(link);
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.urls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_urls(&self, urls: Vec<String>) {
        *self.urls.lock().unwrap_or_else(PoisonError::into_inner) = urls;
    }

    /// Counts a failure, and leaves the group alone if that was one too many.
    pub(crate) fn failed(&self, group: usize, fault: &Fault) {
        let counters = &self.counters;
        count(match fault {
            Fault::Late => &counters.late,
            Fault::Lost(_) => &counters.lost,
            Fault::Refused(_) => &counters.refused,
            Fault::Record(_) => &counters.unusable,
            Fault::Left => return,
        });
        let is_new = self.note(fault);
        if matches!(fault, Fault::Record(_)) {
            // Its client may come often; the counter has all.
            if is_new {
                tracing::warn!(why = fault.detail(), "a record in Redis can't be used");
            }
            return;
        }
        if self.breakers.failed(group, matches!(fault, Fault::Lost(_))) {
            count(&counters.opened);
            self.settled.send_replace(false);
            self.trouble.notify_one();
            tracing::warn!(
                fault = fault.name(),
                why = fault.detail(),
                group,
                policy = self.options.when_gone.name(),
                "Redis is left alone; the policy decides"
            );
        }
    }

    /// Keeps a failure for people to read; answers whether it is another than the last.
    pub(crate) fn note(&self, fault: &Fault) -> bool {
        let text = format!("{}: {}", fault.name(), fault.detail());
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        last.replace(text) != *last
    }

    pub(crate) fn status(&self) -> Status {
        let open = self.breakers.open_groups();
        let mode = match (self.any_link().is_some(), open) {
            (false, _) => Mode::Connecting,
            (true, 0) => Mode::Shared,
            (true, open) if open < self.breakers.groups().len() => Mode::Partly,
            (true, _) => Mode::Alone,
        };
        let last_failure = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Status { mode, last_failure, owed: self.ledger.owed(), counts: self.counters.read() }
    }

    /// Forgets a client.
    pub(crate) async fn reset(self: &Arc<Self>, asked: &Asked) -> Result<(), Fault> {
        self.local.reset(asked.rule.local, &asked.client).await.ok();
        self.ledger.forget(asked.rule.id, &asked.client);
        let mut link = self.link(asked.group)?;
        let mut command = redis::cmd("DEL");
        command.arg(&asked.key);
        let call = async { link.send(&command).await.map(drop).map_err(Fault::from) };
        self.within(self.options.deadline, asked.group, call).await
    }

    /// Waits for a call, and tells the breaker how it went.
    pub(crate) async fn within<T>(
        &self,
        patience: Duration,
        group: usize,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let answer = tokio::time::timeout(patience, call).await.unwrap_or(Err(Fault::Late));
        match &answer {
            Ok(_) => self.breakers.succeeded(group),
            Err(fault) => self.failed(group, fault),
        }
        answer
    }

    /// The microsecond to convert records at: when this rule became known here, or the present one.
    pub(crate) fn conversion_time(&self, asked: &Asked, now: Nanos) -> Nanos {
        Nanos::new(asked.rule.since.min(now).get() / 1000 * 1000)
    }
}
