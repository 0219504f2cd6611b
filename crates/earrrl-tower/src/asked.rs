//! What a request is charged: each rule that applies, its key and its cost.

use std::ops::Range;

use earrrl::{Charge, Cost, RuleId};
use http::StatusCode;
use http::request::Parts;
use smallvec::SmallVec;

use crate::key::KeyBuffer;
use crate::known::Known;
use crate::request_rule::{Missing, RequestCost, RequestRule};

/// The charges of one request. Their keys stand in one buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    each: SmallVec<[AskedOf; 2]>,
    keys: KeyBuffer,
}

/// One rule's.
#[derive(Clone, Debug)]
pub(crate) struct AskedOf {
    pub(crate) cost: Cost,
    /// The place of the [`RequestRule`].
    rule: u32,
    /// The place of the rule or plan among all that are known.
    known: u32,
    key: Range<u32>,
}

impl AskedOf {
    /// The rule, of those of the layer.
    pub(crate) fn rule<'a>(&self, rules: &'a Rules) -> &'a RequestRule {
        &rules[self.rule as usize].0
    }

    /// The rule or plan, as the engine knows it.
    pub(crate) fn known<'a>(&self, known: &'a [Known]) -> &'a Known {
        &known[self.known as usize]
    }
}

/// The rules of a layer, each with the place of its own [`Known`]; its plans follow there.
pub(crate) type Rules = Vec<(RequestRule, usize)>;

impl Asked {
    /// Reads a request under all rules; the status where it is refused for want of a key.
    #[inline]
    pub(crate) fn read(&mut self, rules: &Rules, request: &Parts) -> Result<(), StatusCode> {
        for (place, (rule, first)) in rules.iter().enumerate() {
            if rule.exempt.as_ref().is_some_and(|exempt| exempt(request)) {
                continue;
            }
            let start = self.keys.len();
            if rule.key.write(request, &mut self.keys) {
                self.keys.bound(start);
            } else {
                self.keys.truncate(start);
                match rule.missing {
                    Missing::Shared => {}
                    Missing::Skip => continue,
                    Missing::Deny(status) => return Err(status),
                }
            }
            let plan = rule.plans.iter().position(|plan| (plan.applies)(request));
            self.each.push(AskedOf {
                rule: place as u32,
                known: (first + plan.map_or(0, |plan| plan + 1)) as u32,
                cost: match &rule.cost {
                    RequestCost::Fixed(cost) => *cost,
                    RequestCost::By(cost) => cost(request),
                },
                key: start as u32..self.keys.len() as u32,
            });
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// Each rule that is asked, by its place among the charges.
    pub(crate) fn each(&self) -> impl ExactSizeIterator<Item = (usize, &AskedOf)> {
        self.each.iter().enumerate()
    }

    pub(crate) fn get(&self, place: usize) -> Option<&AskedOf> {
        self.each.get(place)
    }

    /// The charges, for an engine.
    pub(crate) fn charges(&self, known: &[Known]) -> SmallVec<[Charge<'_>; 2]> {
        let mut charges = SmallVec::new();
        self.each.iter().for_each(|of| charges.push(self.charge(known, of, of.cost)));
        charges
    }

    /// One of the charges, at another cost.
    pub(crate) fn charge(&self, known: &[Known], of: &AskedOf, cost: Cost) -> Charge<'_> {
        Charge { rule: of.known(known).id, key: self.key(of), cost }
    }

    /// The charge where there is one, given the rules' ids.
    #[inline]
    pub(crate) fn only_charge(&self, ids: &[RuleId]) -> Option<Charge<'_>> {
        let of = self.only()?;
        Some(Charge { rule: ids[of.known as usize], key: self.key(of), cost: of.cost })
    }

    /// The rule that is asked, where there is one.
    #[inline]
    pub(crate) fn only(&self) -> Option<&AskedOf> {
        if let [of] = &self.each[..] { Some(of) } else { None }
    }

    fn key(&self, of: &AskedOf) -> &[u8] {
        &self.keys.as_bytes()[of.key.start as usize..of.key.end as usize]
    }

    /// Those that `wanted` tells; `None` if there are none.
    pub(crate) fn filtered(&self, wanted: impl Fn(&AskedOf) -> bool) -> Option<Self> {
        if !self.each.iter().any(&wanted) {
            return None;
        }
        let each = self.each.iter().filter(|of| wanted(of)).cloned().collect();
        Some(Self { each, keys: self.keys.clone() })
    }
}
