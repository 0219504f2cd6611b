//! The engine's rules, which are prepared once and replaced when they change.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use earrrl::table::KeyHasher;
use tokio::sync::Notify;

use earrrl::{Cost, EngineError, Limit, Mode, Nanos, Rule, RuleError, RuleId, check_name};

use crate::algorithm::{self, AlgorithmKind, KINDS};
use crate::clients::claim_ttl;
use crate::clients::client::LocalTime;
use crate::clients::table::{ClientTable, NearRule};
use crate::clients::tables::Tables;
use crate::key::crc16;

/// The number of earlier versions of a rule's parameters that are kept.
const EARLIER: usize = 8;
/// The number of words of 64 bits in a [`Converted`].
const CONVERTED_WORDS: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct PreparedRule {
    pub(crate) id: RuleId,
    pub(crate) name: String,
    /// The rule's name and the algorithm's letter, which the keys of its records end with. Each
    /// algorithm has records of its own.
    pub(crate) key: String,
    pub(crate) rule: Rule,
    pub(crate) kind: AlgorithmKind,
    pub(crate) tag: u32,
    /// The time at which this node got these parameters.
    pub(crate) since: Nanos,
    /// Earlier parameters, under which records may still be stored.
    pub(crate) earlier: Vec<(u32, Limit)>,
    /// The rule's id in this node's own engine.
    pub(crate) local: RuleId,
    /// True if this node decides without asking Redis.
    pub(crate) is_near: bool,
    pub(crate) near: Option<Arc<ClientTable>>,
    /// The time for which this node's claims hold.
    pub(crate) claim_ttl: Duration,
    /// The rule's verdict in an outage, in place of a policy that allows or denies all requests.
    pub(crate) without_redis: Option<bool>,
    /// Distinguishes claims under these parameters from claims under others.
    pub(crate) claim_tag: u16,
    /// The clients whose records were converted to these parameters here.
    pub(crate) converted: Arc<Converted>,
}

/// A set of clients, each represented by one bit of its key's hash. A client may seem to be in the set
/// because of another client with the same bit.
#[derive(Debug, Default)]
pub(crate) struct Converted {
    clients: OnceLock<Box<[AtomicU64]>>,
    /// The nanosecond, by this node's clock, until which the kept records of another version of the rule
    /// have counts that matter; 0 if no record was kept.
    kept_until: AtomicU64,
}

impl Converted {
    /// Adds the client of a key, and returns true if it was there before.
    pub(crate) fn add(&self, key: &[u8]) -> bool {
        let words = || (0..CONVERTED_WORDS).map(|_| AtomicU64::new(0)).collect();
        let bit = usize::from(crc16(key)) % (64 * CONVERTED_WORDS);
        let word = &self.clients.get_or_init(words)[bit / 64];
        word.fetch_or(1 << (bit % 64), Ordering::Relaxed) >> (bit % 64) & 1 == 1
    }

    /// Notes that a record of another version is kept, whose counts matter until an instant.
    pub(crate) fn note_kept(&self, until: Nanos) {
        self.kept_until.fetch_max(until.get(), Ordering::Relaxed);
    }

    /// Returns how long the counts of kept records still matter.
    pub(crate) fn kept_for(&self, now: impl FnOnce() -> Nanos) -> Duration {
        match self.kept_until.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            until => Nanos::new(until).since(now()),
        }
    }
}

/// All rules, by their ids.
#[derive(Debug)]
pub(crate) struct Rules {
    all: ArcSwap<Vec<Arc<PreparedRule>>>,
    /// Locked while rules are replaced.
    changing: Mutex<()>,
    /// The clients of near rules.
    pub(crate) tables: Tables,
    /// The hash function of near clients' keys.
    hasher: KeyHasher,
    sync: Duration,
    /// Wakes the task that writes rules to Redis.
    pub(crate) changed: Notify,
    /// Wakes the task that sends heartbeats.
    pub(crate) near_prepared: Notify,
}

/// A rule to be prepared.
#[derive(Clone, Copy)]
pub(crate) struct RuleSpec<'a> {
    pub(crate) name: &'a str,
    pub(crate) rule: &'a Rule,
    /// The capacity of the table of a near rule; `None` for an exact rule.
    pub(crate) near: Option<usize>,
}

impl Rules {
    pub(crate) fn new(hasher: KeyHasher, sync: Duration) -> Self {
        Self {
            all: ArcSwap::default(),
            changing: Mutex::default(),
            tables: Tables::default(),
            hasher,
            sync,
            changed: Notify::new(),
            near_prepared: Notify::new(),
        }
    }

    pub(crate) fn get(&self, id: RuleId) -> Option<Arc<PreparedRule>> {
        self.all.load().get(id.0 as usize).cloned()
    }

    pub(crate) fn all(&self) -> Arc<Vec<Arc<PreparedRule>>> {
        self.all.load_full()
    }

    /// Prepares rules under their names. On an error, none is prepared. `local` prepares the rules
    /// in this node's own engine; nothing can fail after that.
    pub(crate) fn prepare(
        &self,
        wanted: &[RuleSpec<'_>],
        since: Nanos,
        local: impl FnOnce() -> Result<Vec<RuleId>, EngineError>,
    ) -> Result<Vec<RuleId>, EngineError> {
        for RuleSpec { name, rule, near } in wanted {
            check_name(name)?;
            algorithm::check(rule)?;
            if near.is_some() && rule.limit().is_concurrent() {
                let problem = format!("{name}: concurrent is always exact");
                return Err(RuleError::new(problem).of("consistency").into());
            }
        }
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let locals = local()?;
        let before = self.all();
        let each = before.iter().enumerate();
        let mut places: HashMap<&str, usize> = each
            .map(|(place, known)| (known.name.as_str(), place))
            .collect();
        let mut rules = Vec::clone(&before);
        let mut ids = Vec::with_capacity(wanted.len());
        for (wanted, local) in wanted.iter().zip(locals) {
            let place = *places.entry(wanted.name).or_insert(rules.len());
            ids.push(self.put(&mut rules, place, *wanted, since, local));
        }
        self.all.store(Arc::new(rules));
        self.changed.notify_one();
        if wanted.iter().any(|wanted| wanted.near.is_some()) {
            self.near_prepared.notify_one();
        }
        Ok(ids)
    }

    /// Sets rules' verdicts in place of the policies that allow or deny all requests.
    pub(crate) fn set_without_redis(&self, verdicts: &[(RuleId, Option<bool>)]) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rules = Vec::clone(&self.all());
        for (id, verdict) in verdicts {
            if let Some(rule) = rules.get_mut(id.0 as usize)
                && rule.without_redis != *verdict
            {
                *rule = Arc::new(PreparedRule {
                    without_redis: *verdict,
                    ..(**rule).clone()
                });
            }
        }
        self.all.store(Arc::new(rules));
    }

    /// Replaces the rule at a place, or adds a new rule at the end.
    fn put(
        &self,
        rules: &mut Vec<Arc<PreparedRule>>,
        place: usize,
        wanted: RuleSpec<'_>,
        since: Nanos,
        local: RuleId,
    ) -> RuleId {
        let id = RuleId(place as u32);
        let old = rules.get(place).map(|old| &**old);
        let near = self.near_clients(id, wanted, old, since);
        let RuleSpec {
            name,
            rule,
            near: capacity,
        } = wanted;
        let kind = AlgorithmKind::of(rule.limit());
        let tag = algorithm::tag(rule.limit());
        let is_near = capacity.is_some();
        let prepared = PreparedRule {
            id,
            name: name.to_owned(),
            key: record_name(name, kind),
            rule: rule.clone(),
            kind,
            tag,
            since,
            earlier: old.map_or_else(Vec::new, |old| old.history(tag)),
            local,
            is_near,
            near,
            claim_ttl: if is_near {
                claim_ttl(rule.limit(), self.sync)
            } else {
                Duration::ZERO
            },
            claim_tag: algorithm::claim_tag(rule),
            converted: Arc::default(),
            without_redis: old.and_then(|old| old.without_redis),
        };
        match rules.get_mut(place) {
            Some(known) => *known = Arc::new(prepared),
            None => rules.push(Arc::new(prepared)),
        }
        id
    }

    /// Returns the table of a rule's near clients, whose states are converted to the new
    /// parameters. A rule that was near and is exact now keeps its table, in which all clients
    /// expire.
    fn near_clients(
        &self,
        id: RuleId,
        RuleSpec {
            rule,
            near: capacity,
            ..
        }: RuleSpec<'_>,
        old: Option<&PreparedRule>,
        since: Nanos,
    ) -> Option<Arc<ClientTable>> {
        let table = match capacity {
            Some(capacity) => self
                .tables
                .get_or(id, || ClientTable::new(capacity, self.hasher)),
            None => old?.near.clone()?,
        };
        let is_near = capacity.is_some();
        let time = LocalTime {
            local: since,
            offset: 0,
        };
        let changed = old.filter(|old| old.tag != algorithm::tag(rule.limit()));
        let near_rule = is_near.then(|| NearRule {
            rule: rule.clone(),
            lag: rule.limit().lag(),
        });
        table.set_rule(near_rule, |client| {
            changed.inspect(|old| client.convert(old.rule.limit(), rule.limit(), time));
            if !is_near {
                client.expire();
            }
        });
        if !algorithm::of(rule.limit()).adds() {
            table.clear();
        }
        Some(table)
    }
}

/// Returns the end of the keys of a rule's records.
fn record_name(rule: &str, kind: AlgorithmKind) -> String {
    format!("{rule}:{}", kind.letter())
}

impl PreparedRule {
    /// Returns the ends of the keys of all records that the rule can have under any algorithm.
    pub(crate) fn all_keys(&self) -> impl Iterator<Item = String> {
        KINDS.iter().map(|kind| record_name(&self.name, *kind))
    }

    /// Returns the script's parameters for the rule and a cost. `sign` is -1 to take the cost back.
    pub(crate) fn parameters(&self, cost: Cost, linger: Duration, sign: f64) -> Vec<u8> {
        algorithm::pack(
            &algorithm::Terms {
                rule: &self.rule,
                cost,
                sign,
                linger,
            },
            self.tag,
        )
    }

    /// Returns an error that names the rule if its requests cannot be decided in this mode.
    pub(crate) fn accept_mode(&self, mode: Mode) -> Result<(), EngineError> {
        let named = |error: RuleError| error.of(&format!("rule {}", self.name));
        Ok(self.rule.accept_mode(mode).map_err(named)?)
    }

    /// Returns the parameters that are earlier than those of `tag`, the latest first.
    fn history(&self, tag: u32) -> Vec<(u32, Limit)> {
        let known = [(self.tag, *self.rule.limit())]
            .into_iter()
            .chain(self.earlier.clone());
        known
            .filter(|(earlier, _)| *earlier != tag)
            .take(EARLIER)
            .collect()
    }
}
