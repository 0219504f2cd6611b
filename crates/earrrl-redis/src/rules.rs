//! Rules as the engine keeps them: prepared once, replaced when a limit changes.

use std::sync::{Arc, PoisonError, RwLock};

use earrrl::{EngineError, Limit, Nanos, Rule, RuleId, check_name};

use crate::algorithm::{self, Kind};

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
}

/// All rules, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Rules(RwLock<Vec<Arc<Prepared>>>);

impl Rules {
    pub(crate) fn get(&self, id: RuleId) -> Option<Arc<Prepared>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(id.0 as usize).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Prepared>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a rule known under its name. `local` prepares it in this node's own table.
    pub(crate) fn prepare(
        &self,
        name: &str,
        rule: &Rule,
        since: Nanos,
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
        let prepared = Arc::new(Prepared { id, name, rule, kind, tag, since, earlier, local });
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
