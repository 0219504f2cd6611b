//! The parameters of rules in Redis, where other engines find them when they convert records.
//!
//! Each rule has a hash of the parameters that it has had. An engine drops the records of parameters that
//! it does not find, so that with two versions of a rule at once and without the hash, each would forget
//! what the other has counted. Therefore this engine asks no shard of Redis before it has written the hashes
//! of the shard's rules. It then writes them again and again, in case Redis has evicted or lost them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tokio::time::timeout;

use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::rules::PreparedRule;
use crate::shared::Shared;

/// The timeout of writing some rules.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The number of rules that are written at once.
const CHUNK: usize = 64;
/// The interval at which rules are written again, and the number of them each time. An engine with more
/// rules writes each of them less often.
const INTERVAL: Duration = Duration::from_secs(1);
const AGAIN: usize = 16;
/// The time for which a rule's earlier parameters are kept, which is longer than any record lives.
const KEPT: Duration = Duration::from_secs(400 * 366 * 86_400);

type Rules = Arc<Vec<Arc<PreparedRule>>>;
/// The group of slots of a rule whose parameters could not be written, and the reason.
type Refused = (usize, Fault);

/// Writes rules over one link.
pub(crate) struct History {
    shared: Arc<Shared>,
    link: Link,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// The names and tags of the rules that were written.
    written: HashSet<(String, u32)>,
    /// The index of the rule to be written again next.
    next: usize,
}

impl History {
    pub(crate) fn new(shared: &Arc<Shared>, link: &Link) -> Self {
        Self {
            shared: shared.clone(),
            link: link.clone(),
            progress: Mutex::default(),
        }
    }

    /// Writes new rules as soon as they are prepared, and the others again and again. Never returns.
    pub(crate) async fn keep(&self) {
        let breakers = &self.shared.connection.breakers;
        let mut finished = Rules::default();
        loop {
            let rules = self.shared.rules.all();
            let written = if Arc::ptr_eq(&rules, &finished) {
                self.write_again(&rules).await
            } else {
                self.write_new(|group| !breakers.is_open(group)).await
            };
            match written {
                Err((group, fault)) => self.shared.connection.failed(group, &fault),
                Ok(()) if breakers.open_groups() == 0 => finished = rules,
                Ok(()) => {}
            }
            timeout(INTERVAL, self.shared.rules.changed.notified())
                .await
                .ok();
        }
    }

    /// Writes the rules of a group that were not written over this link yet.
    pub(crate) async fn write_group(&self, group: usize) -> Result<(), Fault> {
        self.write_new(|of| of == group)
            .await
            .map_err(|(_, fault)| fault)
    }

    async fn write_new(&self, is_wanted: impl Fn(usize) -> bool) -> Result<(), Refused> {
        let rules = self.shared.rules.all();
        let new: Vec<_> = {
            let progress = self.progress();
            let is_new = |rule: &&Arc<PreparedRule>| !progress.written.contains(&id(rule));
            rules
                .iter()
                .filter(is_new)
                .filter(|rule| is_wanted(self.group(rule)))
                .cloned()
                .collect()
        };
        for chunk in new.chunks(CHUNK) {
            self.write(chunk).await?;
        }
        Ok(())
    }

    /// Writes the next of the rules that were written already.
    async fn write_again(&self, rules: &[Arc<PreparedRule>]) -> Result<(), Refused> {
        let next = {
            let mut progress = self.progress();
            let next = if progress.next < rules.len() {
                progress.next
            } else {
                0
            };
            progress.next = next + AGAIN;
            next
        };
        let breakers = &self.shared.connection.breakers;
        let is_wanted = |rule: &&Arc<PreparedRule>| !breakers.is_open(self.group(rule));
        let chunk: Vec<_> = rules
            .iter()
            .skip(next)
            .take(AGAIN)
            .filter(is_wanted)
            .cloned()
            .collect();
        self.write(&chunk).await
    }

    /// Writes rules. One that Redis does not accept counts as new again.
    async fn write(&self, rules: &[Arc<PreparedRule>]) -> Result<(), Refused> {
        let Some(first) = rules.first() else {
            return Ok(());
        };
        let commands = rules.iter().flat_map(|rule| self.commands(rule)).collect();
        let mut link = self.link.clone();
        let late = |_| (self.group(first), Fault::Late);
        let mut answers = timeout(TIMEOUT, link.send_all(commands))
            .await
            .map_err(late)?
            .into_iter();
        for rule in rules {
            let failed = [answers.next(), answers.next()].into_iter().find_map(fault);
            let unusable = match failed {
                None => None,
                Some(Fault::Record(why)) => Some(why),
                Some(fault) => {
                    self.progress().written.remove(&id(rule));
                    return Err((self.group(rule), fault));
                }
            };
            let is_new = self.progress().written.insert(id(rule));
            if let Some(why) = unusable.filter(|_| is_new) {
                tracing::warn!(rule = rule.name, why, "a rule can't be written down");
            }
        }
        Ok(())
    }

    fn commands(&self, rule: &PreparedRule) -> [Cmd; 2] {
        let key = self.key(rule);
        let mut set = redis::cmd("HSET");
        set.arg(&key).arg(rule.tag).arg(rule.rule.to_string());
        let mut expire = redis::cmd("PEXPIRE");
        expire.arg(&key).arg(KEPT.as_millis() as u64);
        [set, expire]
    }

    fn key(&self, rule: &PreparedRule) -> String {
        self.shared.connection.keys.history(&rule.name)
    }

    fn group(&self, rule: &PreparedRule) -> usize {
        self.shared.connection.group(self.key(rule).as_bytes())
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn id(rule: &PreparedRule) -> (String, u32) {
    (rule.name.clone(), rule.tag)
}

/// Returns why a command failed; a command without an answer counts as lost.
fn fault(answer: Option<RedisResult<Value>>) -> Option<Fault> {
    let lost = || Err(std::io::Error::other("an answer is missing").into());
    answer.unwrap_or_else(lost).err().map(Fault::from)
}
