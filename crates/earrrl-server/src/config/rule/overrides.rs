//! The overrides of a rule: different limits for some of its clients.

use earrrl::Rule;

use super::terms::Terms;
use crate::config::attribute::{Condition, KeyPart, client_lengths, conditions};
use crate::config::condition_index::ConditionIndex;
use crate::config::table::Table;
use earrrl_tower::path::Paths;

/// The largest number of overrides that a rule may have.
const MAX_OVERRIDES: usize = 100_000;
/// The largest number of overrides of one rule that name no single value or network. The index
/// cannot find these, so each is compared with every request.
const MAX_COMPARED: usize = 1000;

/// A different limit for some of a rule's clients.
#[derive(Clone, Debug)]
pub struct Override {
    /// The conditions that a client must meet for the override to apply; all must hold.
    pub conditions: Vec<Condition>,
    /// The override's limit, with the action and the largest cost of the rule that it belongs to.
    pub rule: Rule,
}

impl Override {
    /// Returns the override for one client, which is set at run time. `values` are those of the attributes of
    /// the rule's key.
    ///
    /// # Errors
    /// Returns a sentence about the mistake in the values or in the limit.
    pub fn of_client(
        terms: &Terms,
        key: &[KeyPart],
        values: &[String],
        limit: &str,
    ) -> Result<Self, String> {
        let read = |part: &&KeyPart| part.attributes().next().is_some();
        let parts: Vec<_> = key.iter().filter(read).collect();
        if parts.is_empty() {
            return Err(
                "key: the rule has one limit for all clients; change it in the file".into(),
            );
        }
        if parts.len() != values.len() {
            let (count, expected) = (values.len(), parts.len());
            let names: Vec<_> = parts.iter().map(ToString::to_string).collect();
            let names = names.join(", ");
            return Err(format!("key: {count} parts; expected {expected}: {names}"));
        }
        let lengths = client_lengths(key).next().unwrap_or_default();
        let prefixes = lengths.or(terms.prefixes);
        let condition = |(part, value): (&&KeyPart, &String)| {
            let found = part.split(value.as_bytes());
            let found = found
                .and_then(|(one, value)| Some((one.attribute()?, str::from_utf8(value).ok()?)));
            let Some((attribute, text)) = found else {
                let value = value.escape_debug();
                return Err(format!(
                    "key: `{value}` names none of {part}; expected one of them, `=` and its value"
                ));
            };
            Condition::of_client(attribute, text, terms.paths, prefixes)
                .map_err(|why| format!("key: {attribute}: {why}"))
        };
        let conditions = parts.iter().zip(values).map(condition);
        Ok(Self {
            conditions: conditions.collect::<Result<_, _>>()?,
            rule: terms
                .limit_at_run_time(limit)
                .map_err(|why| format!("limit: {why}"))?,
        })
    }

    /// Returns true if all clients of the override are exempt from its rule.
    pub fn is_exempt_by(&self, exempt: &[Condition]) -> bool {
        are_exempt(&self.conditions, exempt)
    }

    /// Returns true if every client that meets `conditions` also meets the conditions of this
    /// override.
    fn is_for_all_of(&self, conditions: &[Condition]) -> bool {
        let covered = |own: &Condition| conditions.iter().any(|other| own.covers(other));
        !self.conditions.is_empty() && self.conditions.iter().all(covered)
    }
}

/// Returns true if one of the conditions in `exempt` holds for all clients that meet `conditions`.
fn are_exempt(conditions: &[Condition], exempt: &[Condition]) -> bool {
    let covers = |one: &Condition| conditions.iter().any(|own| one.covers(own));
    exempt.iter().any(covers)
}

/// Reads the overrides of a rule.
pub(super) fn overrides(
    table: &Table<'_>,
    exempt: &[Condition],
    terms: &Terms,
    paths: Paths,
) -> Vec<Override> {
    let tables = table.tables("override");
    if let Some(excess) = tables.get(MAX_OVERRIDES) {
        excess.mistake(format!(
            "{} overrides; at most {MAX_OVERRIDES}",
            tables.len()
        ));
    }
    let mut valid: Vec<Override> = Vec::with_capacity(tables.len());
    let mut index = ConditionIndex::default();
    for table in tables {
        let limit = table.required("limit");
        let Some(key) = table.required("key") else {
            continue;
        };
        let conditions = conditions(key, paths);
        if key.is_table() && key.entries().is_empty() {
            key.mistake("expected the clients, as { user = \"alice\" }");
        } else if are_exempt(&conditions, exempt) {
            key.mistake("these are exempt from the rule, so the override never applies");
        } else if is_covered(&valid, &index, &conditions) {
            key.mistake(
                "an override before is for all of these, and the first counts; put it first",
            );
        }
        if let Some(rule) = limit.and_then(|field| terms.limit(field, None)) {
            let rule = terms.bounded(rule);
            index.add(valid.len(), &conditions);
            valid.push(Override { conditions, rule });
        }
        if index.compared() == MAX_COMPARED + 1 {
            key.mistake(format!(
                "more than {MAX_COMPARED} overrides by prefixes alone"
            ));
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
