//! The connection to Redis: links, scripts and receipts, and the breaker that decides whether Redis is used.

pub(crate) mod breaker;
pub(crate) mod fault;
pub(crate) mod link;
pub(crate) mod receipt;
pub(crate) mod redirect;
pub(crate) mod script;
pub(crate) mod sentinel;

use earrrl::internal::lock;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis::{Cmd, Value};
use tokio::sync::{Notify, watch};

use crate::key::{Keys, slot};
use crate::options::Options;
use crate::status::{Counters, EngineMode, count};
use breaker::Breakers;
use fault::Fault;
use link::Link;
use receipt::Receipts;
use script::{Script, Scripts};

/// The shortest time between two warnings that there is no connection.
const WARNING_PAUSE: Duration = Duration::from_secs(60);

pub(crate) struct RedisConnection {
    pub(crate) keys: Keys,
    pub(crate) scripts: Scripts,
    pub(crate) receipts: Arc<Receipts>,
    pub(crate) breakers: Breakers,
    pub(crate) counters: Counters,
    /// Wakes the supervisor of a group when it has work to do.
    pub(crate) attention: Vec<Notify>,
    /// Wakes the supervisor when the link must be replaced.
    pub(crate) reconnect: Notify,
    /// How decisions are made since the last change that was logged.
    pub(crate) published: watch::Sender<EngineMode>,
    cluster: bool,
    /// The longest time for which a decision waits for Redis.
    deadline: Duration,
    /// The name of the policy for outages, which is written to the log.
    policy: &'static str,
    /// The options of the next connection: addresses and passwords may change.
    options: Mutex<Options>,
    link: ArcSwapOption<Link>,
    last_failure: Mutex<Option<String>>,
    /// The last warning that there is no connection, and its time; `None` once Redis decides.
    warned: Mutex<Option<(String, Instant)>>,
}

impl RedisConnection {
    pub(crate) fn new(options: &Options) -> Self {
        let keys = Keys::new(&options.prefix, options.clients.clone(), options.cluster);
        let breakers = Breakers::new(options.cluster, options.failures);
        Self {
            scripts: Scripts::new(),
            receipts: Arc::new(Receipts::new(&keys, options.node.as_deref())),
            counters: Counters::default(),
            attention: breakers.groups().map(|_| Notify::new()).collect(),
            reconnect: Notify::new(),
            published: watch::Sender::new(EngineMode::Connecting),
            cluster: options.cluster,
            deadline: options.deadline,
            policy: options.when_gone.name(),
            options: Mutex::new(options.clone()),
            link: ArcSwapOption::empty(),
            last_failure: Mutex::default(),
            warned: Mutex::default(),
            keys,
            breakers,
        }
    }

    /// Returns the slot of a key. Without a Cluster, all keys are in slot 0.
    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        if self.cluster { slot(key) } else { 0 }
    }

    /// Returns the breaker's group of a key.
    pub(crate) fn group(&self, key: &[u8]) -> usize {
        self.breakers.group(self.slot(key))
    }

    /// Returns the link for a group of slots, or an error if the group's breaker is open.
    pub(crate) fn link(&self, group: usize) -> Result<Link, Fault> {
        if self.breakers.is_open(group) {
            return Err(Fault::Skipped);
        }
        self.any_link()
    }

    /// Returns the link for a call that may take longer than a decision's deadline: also if the breaker is open
    /// because Redis is too far away for decisions.
    pub(crate) fn distant_link(&self, group: usize) -> Result<Link, Fault> {
        match self.breakers.is_far(group) {
            true => self.any_link(),
            false => self.link(group),
        }
    }

    /// Returns the link, even if breakers are open.
    pub(crate) fn any_link(&self) -> Result<Link, Fault> {
        let link = self.link.load().as_deref().cloned();
        link.ok_or(Fault::Skipped)
    }

    pub(crate) fn set_link(&self, link: Link) {
        self.link.store(Some(Arc::new(link)));
    }

    /// Returns the options of the next connection.
    pub(crate) fn options(&self) -> Options {
        lock(&self.options).clone()
    }

    /// Changes the options of the next connection.
    pub(crate) fn change_options(&self, change: impl FnOnce(&mut Options)) {
        change(&mut lock(&self.options));
    }

    /// Sends a command, waits for its answer within the deadline of decisions, and reports the outcome to the
    /// breaker.
    pub(crate) async fn send(&self, group: usize, command: &Cmd) -> Result<Value, Fault> {
        let mut link = self.link(group)?;
        let call = async { link.send(command).await.map_err(Fault::from) };
        self.within(group, call).await
    }

    /// Calls a script in the same way.
    pub(crate) async fn call(
        &self,
        group: usize,
        script: &Script,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value, Fault> {
        let mut link = self.link(group)?;
        let call = async { link.call(script, keys, args).await.map_err(Fault::from) };
        self.within(group, call).await
    }

    /// Waits for a call within the deadline of decisions, and reports its outcome to the breaker.
    pub(crate) async fn within<T>(
        &self,
        group: usize,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let answer = tokio::time::timeout(self.deadline, call)
            .await
            .unwrap_or(Err(Fault::Late));
        self.report(group, &answer);
        answer
    }

    /// Reports the outcome of a call to the breaker.
    pub(crate) fn report<T>(&self, group: usize, answer: &Result<T, Fault>) {
        match answer {
            Ok(_) => self.breakers.succeeded(group),
            Err(fault) => self.failed(group, fault),
        }
    }

    /// Counts a failure, and opens the group's breaker after too many failures in a row.
    pub(crate) fn failed(&self, group: usize, fault: &Fault) {
        let counters = &self.counters;
        count(match fault {
            Fault::Late => &counters.late,
            Fault::Lost(_) => &counters.lost,
            Fault::Refused(_) => &counters.refused,
            Fault::Record(_) => &counters.unusable,
            Fault::Skipped => return,
        });
        let is_new = self.note(fault);
        if matches!(fault, Fault::Record(_)) {
            // A client that sends often must not fill the log. The counter includes every case.
            if is_new {
                tracing::warn!(why = fault.detail(), "a record in Redis can't be used");
            }
            return;
        }
        if self.breakers.failed(group, matches!(fault, Fault::Lost(_))) {
            count(&counters.opened);
            self.publish(Some(fault));
            self.attention[group].notify_one();
        }
    }

    /// Closes a group's breaker, so that Redis decides again.
    pub(crate) fn let_in(&self, group: usize) {
        self.breakers.close(group);
        count(&self.counters.closed);
        *lock(&self.warned) = None;
        self.publish(None);
    }

    /// Publishes and logs a change of mode, however many groups are affected. Groups change concurrently, so the mode
    /// is computed under the channel's lock: the last publisher has then seen every change.
    fn publish(&self, fault: Option<&Fault>) {
        self.published.send_if_modified(|published| {
            let mode = self.mode();
            if std::mem::replace(published, mode) == mode {
                return false;
            }
            let mode = mode.name();
            let policy = self.policy;
            match fault {
                Some(fault) => {
                    let (fault, why) = (fault.name(), fault.detail());
                    tracing::warn!(
                        mode,
                        fault,
                        why,
                        policy,
                        "Redis is left alone; the policy decides"
                    );
                }
                None => tracing::info!(mode, "Redis decides"),
            }
            true
        });
    }

    /// Returns true if a failure to connect deserves a warning: it is the first one since Redis
    /// decided, or has another cause and the last warning is old. Causes that differ in digits only
    /// count as one, since some contain the time.
    pub(crate) fn deserves_warning(&self, fault: &Fault) -> bool {
        let cause = fault
            .detail()
            .chars()
            .filter(|c| !c.is_ascii_digit())
            .collect();
        let mut warned = lock(&self.warned);
        let is_told = warned
            .as_ref()
            .is_some_and(|(known, since)| *known == cause || since.elapsed() < WARNING_PAUSE);
        if !is_told {
            *warned = Some((cause, Instant::now()));
        }
        !is_told
    }

    /// Stores a failure for the status. Returns true if it differs from the previous one.
    pub(crate) fn note(&self, fault: &Fault) -> bool {
        let text = format!("{}: {}", fault.name(), fault.detail());
        let mut last = lock(&self.last_failure);
        last.replace(text) != *last
    }

    pub(crate) fn last_failure(&self) -> Option<String> {
        lock(&self.last_failure).clone()
    }

    /// Returns how decisions are made at present.
    pub(crate) fn mode(&self) -> EngineMode {
        let open = self.breakers.open_groups();
        match (self.link.load().is_some(), open) {
            (_, 0) => EngineMode::Shared,
            (false, _) => EngineMode::Connecting,
            (true, open) if open < self.breakers.groups().len() => EngineMode::Partly,
            (true, _) => EngineMode::Alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const ROUNDS: u32 = 50_000;

    #[test]
    fn one_warning_is_enough_while_nothing_else_changes() {
        let connection = RedisConnection::new(&Options::new("redis://127.0.0.1:1"));
        let is_new = |why: &str| connection.deserves_warning(&Fault::Lost(why.to_owned()));
        assert!(is_new("certificate expired: 57373372 seconds ago"));
        assert!(!is_new("certificate expired: 57373373 seconds ago"));
        assert!(!is_new("broken pipe") && !is_new("Connection reset by peer"));
        let long_ago = Instant::now().checked_sub(WARNING_PAUSE).unwrap();
        connection.warned.lock().unwrap().as_mut().unwrap().1 = long_ago;
        assert!(!is_new("certificate expired: 57373373 seconds ago"));
        assert!(is_new("broken pipe"));
        connection.let_in(0);
        assert!(is_new("broken pipe"));
    }

    /// The supervisors of several groups close their breakers concurrently.
    #[test]
    fn all_are_closed_once_the_last_group_is_let_in() {
        let connection = RedisConnection::new(&Options::cluster(["redis://127.0.0.1:1"]));
        let groups = connection.breakers.groups();
        groups.for_each(|group| connection.let_in(group));
        let fault = Fault::Lost("broken".to_owned());
        let begin = Barrier::new(2);
        let all_closed = |_: &u32| {
            [0, 1]
                .into_iter()
                .for_each(|group| connection.failed(group, &fault));
            begin.wait();
            connection.let_in(0);
            begin.wait();
            *connection.published.borrow() == EngineMode::Shared
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    begin.wait();
                    connection.let_in(1);
                    begin.wait();
                }
            });
            assert_eq!((0..ROUNDS).filter(all_closed).count(), ROUNDS as usize);
        });
    }
}
