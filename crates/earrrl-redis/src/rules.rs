//! Rules as the engine keeps them: prepared once, replaced when a limit changes.

use std::sync::{Arc, PoisonError, RwLock};

use earrrl::{EngineError, Limit, Nanos, Rule, RuleId, check_name};

use crate::algorithm::{self, Kind};
use crate::near::client::Time;
use crate::near::table::Table;

/// Earlier parameters that are kept for each rule.
const EARLIER: usize = 8;

#[derive(Debug)]
pub(crate) struct Prepared {
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
    /// Its clients, where this node decides by itself.
    pub(crate) near: Option<Arc<Table>>,
}

/// All rules, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Rules(RwLock<Vec<Arc<Prepared>>>);

impl Rules {
    pub(crate) fn get(&self, id: RuleId) -> Option<Arc<Prepared>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(id.0 as usize).cloned()
    }

    /// Looks at a rule where it is.
    pub(crate) fn look<R>(&self, id: RuleId, see: impl FnOnce(&Prepared) -> R) -> Option<R> {
        let rules = self.0.read().unwrap_or_else(PoisonError::into_inner);
        rules.get(id.0 as usize).map(|rule| see(rule))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Prepared>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a rule known under its name. `local` prepares it in this node's own table; `near` is the room
    /// for clients that are decided without a trip, where there are such.
    pub(crate) fn prepare(
        &self,
        name: &str,
        rule: &Rule,
        since: Nanos,
        near: Option<usize>,
        local: impl FnOnce() -> Result<RuleId, EngineError>,
    ) -> Result<RuleId, EngineError> {
        check_name(name)?;
        algorithm::of(rule.limit()).check()?;
        let kind = Kind::of(rule.limit());
        let mut rules = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let local = local()?;
        let place = rules.iter().position(|known| known.name == name);
        let id = RuleId(place.unwrap_or(rules.len()) as u32);
        let tag = algorithm::tag(rule.limit());
        let earlier = place.map_or_else(Vec::new, |place| rules[place].history(tag));
        let (name, rule) = (name.to_owned(), rule.clone());
        let near = near.map(|room| {
            let known = place.and_then(|place| rules[place].near.clone());
            known.unwrap_or_else(|| Arc::new(Table::new(room)))
        });
        if let (Some(near), Some(old)) = (&near, place.map(|place| &rules[place])) {
            let time = Time { local: since, offset: 0 };
            if old.tag != tag {
                near.each(|client| client.convert(old.rule.limit(), rule.limit(), time));
            }
        }
        let prepared = Prepared { id, name, rule, kind, tag, since, earlier, local, near };
        let prepared = Arc::new(prepared);
        match place {
            Some(place) => rules[place] = prepared,
            None => rules.push(prepared),
        }
        Ok(id)
    }
}

impl Prepared {
    /// The parameters that are earlier than those of `tag`, once those hold; the latest first.
    fn history(&self, tag: u32) -> Vec<(u32, Limit)> {
        let known = [(self.tag, *self.rule.limit())].into_iter().chain(self.earlier.clone());
        known.filter(|(earlier, _)| *earlier != tag).take(EARLIER).collect()
    }
}
