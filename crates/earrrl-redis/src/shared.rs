//! What a decision, the supervisor and what runs on in the background share.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use earrrl::table::KeyHasher;
use earrrl::{Charge, Clock, Engine as _, EngineError, MemoryEngine, Nanos, Rule, RuleId};
use tokio::sync::{Notify, watch};

use crate::breaker::Breakers;
use crate::key::{Keys, slot};
use crate::ledger::Ledger;
use crate::link::{Fault, Link};
use crate::near::{Near, check_near};
use crate::options::{Consistency, Options, WhenGone};
use crate::probe::Probe;
use crate::receipt::Receipts;
use crate::request::AskedCharge;
use crate::rules::{PreparedRule, Rules};
use crate::script::Scripts;
use crate::status::{Counters, EngineMode, Status, count};
use crate::unsettled::Unsettleds;

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) keys: Keys,
    pub(crate) rules: Rules,
    pub(crate) scripts: Scripts,
    pub(crate) breakers: Breakers,
    pub(crate) local: MemoryEngine<Arc<dyn Clock>>,
    pub(crate) ledger: Ledger,
    pub(crate) receipts: Arc<Receipts>,
    pub(crate) unsettled: Unsettleds,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Counters,
    pub(crate) probe: Probe,
    pub(crate) near: Near,
    /// Told, group by group, when there is something for the supervisor to do.
    pub(crate) trouble: Vec<Notify>,
    /// Told when there are other rules.
    pub(crate) rules_changed: Notify,
    /// Told when the connection is to be given up.
    pub(crate) give_up: Notify,
    /// Whether Redis decides everything.
    pub(crate) settled: watch::Sender<bool>,
    urls: Mutex<Vec<String>>,
    link: RwLock<Option<Link>>,
    last_failure: Mutex<Option<String>>,
    /// The latest microsecond that a caller gave.
    latest: AtomicU64,
    /// The mode that was last written to the log.
    told: Mutex<EngineMode>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(options: Options, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        let keys = Keys::new(&options.prefix, options.clients.clone());
        let breakers = Breakers::new(options.cluster, options.failures);
        let probe = Probe::new(probe_keys(&keys, &breakers, options.cluster))?;
        let near = Near::new(breakers.groups().len(), options.nodes);
        let unavailable =
            |error: &dyn std::error::Error| EngineError::Unavailable(error.to_string());
        let hasher = KeyHasher::random().map_err(|error| unavailable(&error))?;
        let trouble = breakers.groups().map(|_| Notify::new()).collect();
        let local = MemoryEngine::with_clock(options.local_capacity, clock.clone());
        let receipts = Arc::new(Receipts::new(&keys, options.cluster));
        Ok(Self {
            receipts,
            unsettled: Unsettleds::new(breakers.groups().len()),
            keys,
            rules: Rules::new(hasher, options.sync),
            scripts: Scripts::new(),
            breakers,
            local: local.map_err(|error| unavailable(&error))?,
            ledger: Ledger::new(options.local_capacity),
            clock,
            counters: Counters::default(),
            probe,
            near,
            trouble,
            rules_changed: Notify::new(),
            give_up: Notify::new(),
            settled: watch::Sender::new(false),
            urls: Mutex::new(options.urls.clone()),
            link: RwLock::default(),
            last_failure: Mutex::default(),
            latest: AtomicU64::new(0),
            told: Mutex::new(EngineMode::Connecting),
            options,
        })
    }

    pub(crate) fn prepare(
        &self,
        wanted: &[(&str, &Rule, usize, Consistency)],
    ) -> Result<Vec<RuleId>, EngineError> {
        for (_, rule, _, consistency) in wanted {
            if *consistency == Consistency::Near {
                check_near(rule)?;
            }
        }
        // A table that no decision is made by takes no room.
        let room = |capacity| if self.options.when_gone == WhenGone::Local { capacity } else { 1 };
        let latest = self.latest.load(Ordering::Acquire);
        let since = if latest == 0 { self.clock.now() } else { Nanos::new(latest) };
        let local: Vec<_> =
            wanted.iter().map(|(name, rule, n, _)| (*name, *rule, room(*n))).collect();
        let near = |consistency, room| (consistency == Consistency::Near).then_some(room);
        let shared: Vec<_> =
            wanted.iter().map(|(name, rule, n, how)| (*name, *rule, near(*how, *n))).collect();
        let ids = self.rules.prepare(&shared, since, || self.local.prepare_all(&local))?;
        self.rules_changed.notify_one();
        Ok(ids)
    }

    /// A caller's time in whole microseconds, never before the latest one that was given.
    pub(crate) fn given(&self, now: Option<Nanos>) -> Option<Nanos> {
        let now = now?.get() / 1000 * 1000;
        Some(Nanos::new(self.latest.fetch_max(now, Ordering::AcqRel).max(now)))
    }

    /// The latest time that a caller gave, if one ever did.
    pub(crate) fn last_given(&self) -> Option<Nanos> {
        let latest = self.latest.load(Ordering::Acquire);
        (latest > 0).then_some(Nanos::new(latest))
    }

    /// The time to use when Redis is not asked.
    pub(crate) fn now(&self, given: Option<Nanos>) -> Nanos {
        given.unwrap_or_else(|| self.clock.now())
    }

    /// The breaker's group of a key.
    pub(crate) fn group(&self, key: &[u8]) -> usize {
        self.breakers.group(if self.options.cluster { slot(key) } else { 0 })
    }

    /// A charge as it goes to Redis.
    pub(crate) fn asked(
        &self,
        rule: Arc<PreparedRule>,
        charge: &Charge<'_>,
        place: usize,
    ) -> AskedCharge {
        let key = self.keys.record(charge.key, &rule.name);
        let slot = if self.options.cluster { slot(&key) } else { 0 };
        let group = self.breakers.group(slot);
        AskedCharge { rule, client: charge.key.into(), cost: charge.cost, place, key, slot, group }
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
            self.tell_settled();
            self.trouble[group].notify_one();
            self.tell_mode(Some(fault));
        }
    }

    /// Lets a group decide on Redis.
    pub(crate) fn let_in(&self, group: usize) {
        self.breakers.close(group);
        count(&self.counters.closed);
        self.tell_settled();
        self.tell_mode(None);
    }

    /// Groups come and go at once: whoever tells last has seen what the others did.
    fn tell_settled(&self) {
        self.settled.send_modify(|settled| *settled = self.breakers.open_groups() == 0);
    }

    /// Writes a change of mode to the log: one line, however many groups it goes through.
    fn tell_mode(&self, fault: Option<&Fault>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let mode = self.mode();
        if std::mem::replace(&mut *told, mode) == mode {
            return;
        }
        let (mode, policy) = (mode.name(), self.options.when_gone.name());
        match fault {
            Some(fault) => {
                let (fault, why) = (fault.name(), fault.detail());
                tracing::warn!(mode, fault, why, policy, "Redis is left alone; the policy decides");
            }
            None => tracing::info!(mode, "Redis decides again"),
        }
    }

    /// Keeps a failure for people to read; answers whether it is another than the last.
    pub(crate) fn note(&self, fault: &Fault) -> bool {
        let text = format!("{}: {}", fault.name(), fault.detail());
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        last.replace(text) != *last
    }

    fn mode(&self) -> EngineMode {
        let open = self.breakers.open_groups();
        match (self.any_link().is_some(), open) {
            (false, _) => EngineMode::Connecting,
            (true, 0) => EngineMode::Shared,
            (true, open) if open < self.breakers.groups().len() => EngineMode::Partly,
            (true, _) => EngineMode::Alone,
        }
    }

    pub(crate) fn status(&self) -> Status {
        let mode = self.mode();
        let last_failure = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let rules = self.rules.all();
        let unsent =
            rules.iter().filter_map(|rule| rule.near.as_ref()).map(|near| near.owed()).sum();
        let (owed, unsettled) = (self.ledger.owed(), self.unsettled.count());
        let base_age = self.near.age(self.clock.now());
        let (mut counts, nodes) = (self.counters.read(), self.near.nodes());
        counts.near += self.rules.tables.iter().map(|table| table.decided()).sum::<u64>();
        Status { mode, last_failure, owed, unsettled, unsent, base_age, nodes, counts }
    }

    /// Forgets a client.
    pub(crate) async fn reset(self: &Arc<Self>, asked: &AskedCharge) -> Result<(), Fault> {
        self.local.reset(asked.rule.local, &asked.client).await.ok();
        self.ledger.forget(asked);
        self.unsettled.forget(asked);
        self.with_near(asked, None, |client, _| client.forget());
        let mut link = self.link(asked.group)?;
        let mut command = redis::cmd("DEL");
        command.arg(&asked.key);
        if asked.rule.near.is_some() {
            command.arg(self.keys.claims(&asked.key));
        }
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
    pub(crate) fn conversion_time(&self, asked: &AskedCharge, now: Nanos) -> Nanos {
        Nanos::new(asked.rule.since.min(now).get() / 1000 * 1000)
    }
}

/// A key of the engine's own in each group.
fn probe_keys(keys: &Keys, breakers: &Breakers, cluster: bool) -> Vec<Vec<u8>> {
    let group = |key: &[u8]| breakers.group(if cluster { slot(key) } else { 0 });
    let key_in = |wanted| {
        let mut keys = (0u32..).map(|number| keys.probe(number).into_bytes());
        keys.find(|key| group(key) == wanted)
    };
    breakers.groups().filter_map(key_in).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use earrrl::SystemClock;

    const ROUNDS: u32 = 50_000;

    /// Groups are let in at once, by tasks of their own.
    #[test]
    fn it_is_settled_when_the_last_group_is_let_in() {
        let options = Options::cluster(["redis://127.0.0.1:1"]);
        let shared = Shared::new(options, Arc::new(SystemClock::new())).unwrap();
        let (fault, begin) = (Fault::Lost("broken".to_owned()), Barrier::new(2));
        let is_settled = |_: &u32| {
            [0, 1].into_iter().for_each(|group| shared.failed(group, &fault));
            begin.wait();
            shared.let_in(0);
            begin.wait();
            *shared.settled.borrow()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    begin.wait();
                    shared.let_in(1);
                    begin.wait();
                }
            });
            assert_eq!((0..ROUNDS).filter(is_settled).count(), ROUNDS as usize);
        });
    }
}
