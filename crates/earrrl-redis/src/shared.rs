//! The state that decisions, the supervisor and background tasks share.

use std::sync::{Arc, Mutex};

use earrrl::internal::Preparation;
use earrrl::{Clock, Cost, EngineError, MemoryEngine, Rule, RuleId};

use crate::batches::Batches;
use crate::clocks::{Clocks, WholeMicros};
use crate::connection::RedisConnection;
use crate::ledger::Ledger;
use crate::live_holds::LiveHolds;
use crate::options::{Consistency, Options, WhenGone};
use crate::request::KeyedCharge;
use crate::rules::{PreparedRule, RuleSpec, Rules, prepared};
use crate::status::Status;
use crate::unsettled::UnsettledCalls;

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) connection: RedisConnection,
    pub(crate) clocks: Clocks,
    pub(crate) rules: Rules,
    /// The engine that decides while Redis is not reachable.
    pub(crate) local: MemoryEngine<Arc<dyn Clock>>,
    /// The changes of records that Redis lacks.
    pub(crate) ledger: Ledger,
    /// The calls that Redis may or may not have executed.
    pub(crate) unsettled: UnsettledCalls,
    /// The decisions that wait to be sent to Redis.
    pub(crate) batches: Batches,
    /// The reservations that this node has made.
    pub(crate) holds: Mutex<LiveHolds>,
    /// The rule of the requests that show if Redis can be used.
    pub(crate) probe: Arc<PreparedRule>,
}

const PROBE: &str = "fixed-window 9000000/1s";

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(options: Options, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        let clock: Arc<dyn Clock> = Arc::new(WholeMicros(clock));
        let local = MemoryEngine::with_clock(options.local_capacity, clock.clone());
        let probe: Rule = PROBE.parse()?;
        let probe = ("probe", &probe, 1, Consistency::Exact);
        let connection = RedisConnection::new(&options);
        let groups = connection.breakers.groups().len();
        Ok(Self {
            connection,
            clocks: Clocks::new(clock, groups),
            rules: Rules::default(),
            local: local.map_err(|error| EngineError::Unavailable(error.to_string()))?,
            ledger: Ledger::new(options.local_capacity, groups),
            unsettled: UnsettledCalls::new(groups),
            batches: Batches::new(groups, options.cluster, options.deadline),
            holds: Mutex::default(),
            probe: Arc::new(prepared(RuleId(0), "probe", &probe, None)),
            options,
        })
    }

    /// Prepares rules in the store of this name or else in stores of their own. On an error, none is prepared.
    pub(crate) fn prepare(
        &self,
        store: Option<&str>,
        wanted: &[RuleSpec<'_>],
    ) -> Result<Vec<RuleId>, EngineError> {
        // If the local tables make no decisions, one store of the least capacity takes their place.
        let is_used = self.options.when_gone == WhenGone::Local;
        let local = wanted.iter().map(|&(name, rule, capacity, _)| Preparation {
            name,
            rule,
            capacity: if is_used { capacity } else { 1 },
            store: if is_used { store } else { Some("unused") },
        });
        let local: Vec<_> = local.collect();
        self.rules
            .prepare(store, wanted, || self.local.prepare_all(&local))
    }

    /// Returns a charge of a client with its key, slot and group.
    pub(crate) fn keyed(
        &self,
        rule: Arc<PreparedRule>,
        client: &[u8],
        cost: Cost,
        place: usize,
    ) -> KeyedCharge {
        let key = self.connection.keys.record(client, &rule.key);
        KeyedCharge {
            client: client.into(),
            place,
            ..self.of_record(rule, key, cost)
        }
    }

    /// Returns a charge of the record with this key.
    pub(crate) fn of_record(
        &self,
        rule: Arc<PreparedRule>,
        key: Vec<u8>,
        cost: Cost,
    ) -> KeyedCharge {
        let slot = self.connection.slot(&key);
        KeyedCharge {
            rule,
            client: Vec::new(),
            cost,
            place: 0,
            key,
            slot,
            group: self.connection.breakers.group(slot),
        }
    }

    pub(crate) fn status(&self) -> Status {
        Status {
            mode: self.connection.mode(),
            last_failure: self.connection.last_failure(),
            owed: self.ledger.len(),
            unsettled: self.unsettled.len(),
            counts: self.connection.counters.read(),
        }
    }
}
