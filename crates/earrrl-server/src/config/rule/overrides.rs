//! The overrides of a rule: different limits for some of its clients.

use earrrl::Rule;

use super::limit::{SharedTerms, limit};
use crate::config::attribute::{Condition, conditions};
use crate::config::condition_index::ConditionIndex;
use crate::config::file;
use crate::config::problem::Problems;
use earrrl_tower::path::Paths;

/// The largest number of overrides that a rule may have.
const MAX_OVERRIDES: usize = 100_000;
/// The largest number of overrides of one rule that name no single value or network. The index
/// cannot find these, so each is compared with every request.
const MAX_COMPARED: usize = 1000;

/// A different limit for some of a rule's clients.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Override {
    /// The conditions that a client must meet for the override to apply; all must hold.
    pub conditions: Vec<Condition>,
    /// The override's limit, with the action and the largest cost of the rule that it belongs to.
    pub rule: Rule,
}

impl Override {
    /// Returns true if every client that meets `conditions` also meets the conditions of this
    /// override.
    fn is_for_all_of(&self, conditions: &[Condition]) -> bool {
        let covered = |own: &Condition| conditions.iter().any(|other| own.covers(other));
        !self.conditions.is_empty() && self.conditions.iter().all(covered)
    }

    /// Sets the override's bound on bytes to that of its rule, if the override's limit can have
    /// one.
    pub(super) fn bound_as(&mut self, rule: &Rule) {
        let max_bytes = rule.max_bytes();
        if let Some(Ok(bounded)) = max_bytes.map(|bytes| self.rule.clone().with_max_bytes(bytes)) {
            self.rule = bounded;
        }
    }
}

/// Validates the overrides of a rule.
pub(super) fn overrides(
    (file, exempt): (&file::RuleTable, &[Condition]),
    terms: SharedTerms,
    paths: Paths,
    problems: &mut Problems,
) -> Vec<Override> {
    let is_exempt = |conditions: &[Condition]| {
        exempt
            .iter()
            .any(|one| conditions.iter().any(|own| one.covers(own)))
    };
    if let Some(excess) = file.overrides.get(MAX_OVERRIDES) {
        let count = file.overrides.len();
        problems.add(
            excess.key.span(),
            format!("{count} overrides; at most {MAX_OVERRIDES}"),
        );
    }
    let mut valid: Vec<Override> = Vec::with_capacity(file.overrides.len().min(MAX_OVERRIDES));
    let mut index = ConditionIndex::default();
    for entry in file.overrides.iter().take(MAX_OVERRIDES) {
        let conditions = conditions("override", entry.key.get_ref(), paths, problems);
        if entry.key.get_ref().is_empty() {
            problems.add(
                entry.key.span(),
                "override: key must name the clients, such as { user = \"alice\" }",
            );
        } else if is_exempt(&conditions) {
            let why = "override: these are exempt from the rule, so it never applies";
            problems.add(entry.key.span(), why);
        } else if is_covered(&valid, &index, &conditions) {
            let why =
                "override: one before it is for all of these, and the first counts; put it first";
            problems.add(entry.key.span(), why);
        }
        if let Some(rule) = limit(&entry.limit, terms, problems) {
            index.add(valid.len(), &conditions);
            valid.push(Override { conditions, rule });
        }
        if index.compared() > MAX_COMPARED {
            let why = format!("more than {MAX_COMPARED} overrides by prefixes alone");
            problems.add(entry.key.span(), why);
            break;
        }
    }
    valid
}

/// Returns true if one of the overrides in `valid` applies to all requests that meet `conditions`,
/// so that a later override for these would never apply.
fn is_covered(valid: &[Override], index: &ConditionIndex, conditions: &[Condition]) -> bool {
    let samples: Vec<_> = conditions
        .iter()
        .map(|one| (&one.attribute, one.sample().unwrap_or_default()))
        .collect();
    let value = |name: &str| {
        let sample = samples.iter().find(|(attribute, _)| *attribute == name);
        sample.map(|(_, value)| value.as_bytes())
    };
    index
        .find(value, |place| valid[place].is_for_all_of(conditions))
        .is_some()
}
