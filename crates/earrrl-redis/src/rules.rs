//! Rules as the engine keeps them: prepared once, replaced when a limit changes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use earrrl::table::KeyHasher;
use earrrl::{Cost, EngineError, Limit, Nanos, Rule, RuleId, check_name};

use crate::algorithm::{self, Kind};
use crate::near::client::Time;
use crate::near::lease;
use crate::near::table::{NearRule, Table};
use crate::near::tables::Tables;

/// Earlier parameters that are kept for each rule.
const EARLIER: usize = 8;

#[derive(Debug)]
pub(crate) struct PreparedRule {
    pub(crate) id: RuleId,
    pub(crate) name: String,
    pub(crate) rule: Rule,
    pub(crate) kind: Kind,
    pub(crate) tag: u32,
    /// When these parameters became known here.
    pub(crate) since: Nanos,
    /// Parameters under which records may still have been written.
    pub(crate) earlier: Vec<(u32, Limit)>,
    /// The rule in this node's own table.
    pub(crate) local: RuleId,
    /// Whether this node decides by itself, and its clients: also those of a rule that was near, for as long as
    /// Redis lacks something of them.
    pub(crate) is_near: bool,
    pub(crate) near: Option<Arc<Table>>,
    /// How long this node's claims of what it has left hold.
    pub(crate) lease: Duration,
}

/// All rules, by their ids.
#[derive(Debug)]
pub(crate) struct Rules {
    all: ArcSwap<Vec<Arc<PreparedRule>>>,
    /// Held by whoever changes them.
    changing: Mutex<()>,
    /// The clients of those that are near.
    pub(crate) tables: Tables,
    /// Of clients that are decided without a trip, and how often they are exchanged.
    hasher: KeyHasher,
    sync: Duration,
}

impl Rules {
    pub(crate) fn new(hasher: KeyHasher, sync: Duration) -> Self {
        Self {
            all: ArcSwap::default(),
            changing: Mutex::default(),
            tables: Tables::default(),
            hasher,
            sync,
        }
    }

    pub(crate) fn get(&self, id: RuleId) -> Option<Arc<PreparedRule>> {
        self.all.load().get(id.0 as usize).cloned()
    }

    pub(crate) fn all(&self) -> Arc<Vec<Arc<PreparedRule>>> {
        self.all.load_full()
    }

    /// Makes rules known under their names: all of them, or on an error none. `local` prepares them in
    /// this node's own tables; nothing fails after that. With each comes the room for clients that are
    /// decided without a trip, where there are such.
    pub(crate) fn prepare(
        &self,
        wanted: &[(&str, &Rule, Option<usize>)],
        since: Nanos,
        local: impl FnOnce() -> Result<Vec<RuleId>, EngineError>,
    ) -> Result<Vec<RuleId>, EngineError> {
        for (name, rule, _) in wanted {
            check_name(name)?;
            algorithm::of(rule.limit()).check()?;
        }
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let locals = local()?;
        let mut rules = Vec::clone(&self.all());
        let each = wanted.iter().zip(locals);
        let ids = each.map(|(wanted, local)| self.put(&mut rules, *wanted, since, local)).collect();
        self.all.store(Arc::new(rules));
        Ok(ids)
    }

    /// Puts a rule in the place of the one of its name, or behind all others.
    fn put(
        &self,
        rules: &mut Vec<Arc<PreparedRule>>,
        (name, rule, near): (&str, &Rule, Option<usize>),
        since: Nanos,
        local: RuleId,
    ) -> RuleId {
        let place = rules.iter().position(|known| known.name == name);
        let id = RuleId(place.unwrap_or(rules.len()) as u32);
        let (kind, tag) = (Kind::of(rule.limit()), algorithm::tag(rule.limit()));
        let old = place.map(|place| &rules[place]);
        let earlier = old.map_or_else(Vec::new, |old| old.history(tag));
        let is_near = near.is_some();
        let near = near.map(|room| self.tables.get_or(id, || Table::new(room, self.hasher)));
        let near = near.or_else(|| old.and_then(|old| old.near.clone()));
        if let Some(near) = &near {
            let time = Time { local: since, offset: 0 };
            let old = old.filter(|old| old.tag != tag).map(|old| old.rule.limit());
            let lag = rule.limit().lag();
            near.set_rule(is_near.then(|| NearRule { rule: rule.clone(), lag }), |client| {
                old.inspect(|old| client.convert(old, rule.limit(), time));
                if !is_near {
                    client.distrust();
                }
            });
        }
        if let Some(left) = near.as_ref().filter(|_| !algorithm::of(rule.limit()).adds()) {
            left.clear();
        }
        let lease = if is_near { lease(rule.limit(), self.sync) } else { Duration::ZERO };
        let (name, rule) = (name.to_owned(), rule.clone());
        let prepared =
            PreparedRule { id, name, rule, kind, tag, since, earlier, local, is_near, near, lease };
        match place {
            Some(place) => rules[place] = Arc::new(prepared),
            None => rules.push(Arc::new(prepared)),
        }
        id
    }
}

impl PreparedRule {
    /// What a script reads of the rule and of a cost, `sign` -1 to take it back.
    pub(crate) fn parameters(&self, cost: Cost, linger: Duration, sign: f64) -> Vec<u8> {
        algorithm::pack(&algorithm::Terms { rule: &self.rule, cost, sign, linger }, self.tag)
    }

    /// The parameters that are earlier than those of `tag`, once those hold; the latest first.
    fn history(&self, tag: u32) -> Vec<(u32, Limit)> {
        let known = [(self.tag, *self.rule.limit())].into_iter().chain(self.earlier.clone());
        known.filter(|(earlier, _)| *earlier != tag).take(EARLIER).collect()
    }
}
