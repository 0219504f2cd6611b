//! The limit of a rule or of an override: an algorithm with an action and bounds.

use std::ops::RangeInclusive;

use earrrl::{Action, Cost, Rule};
use toml::Spanned;

use crate::config::problem::Problems;
use crate::config::value;

/// The smallest and the largest value of the field `max_bytes`.
const MAX_BYTES: RangeInclusive<u64> = 1_000_000..=1_000_000_000_000_000;

/// The fields of a rule that its overrides share.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedTerms {
    pub(super) action: Action,
    pub(super) max_cost: Option<Cost>,
}

/// Validates the text of a limit.
pub(super) fn limit(
    field: &Spanned<String>,
    SharedTerms { action, max_cost }: SharedTerms,
    problems: &mut Problems,
) -> Option<Rule> {
    let rule = field.get_ref().parse::<Rule>().map_err(|error| {
        // The parser's error has a column within the rule's text, which is converted to a place in
        // the file.
        let start = field.span().start + error.column().unwrap_or(1);
        (start, format!("limit: {}", error.message()))
    });
    let rule = rule.and_then(|rule| {
        let start = field.span().start;
        let rule = rule
            .with_action(action)
            .map_err(|error| (start, error.to_string()))?;
        match max_cost {
            Some(max_cost) => rule
                .with_max_cost(max_cost)
                .map_err(|e| (start, e.to_string())),
            None => Ok(rule),
        }
    });
    match rule {
        Ok(rule) => Some(rule),
        Err((start, problem)) => {
            problems.add(start..field.span().end, problem);
            None
        }
    }
}

/// Sets the rule's bound on bytes from the field `max_bytes`.
pub(super) fn bounded(
    rule: Rule,
    field: Option<&Spanned<u64>>,
    problems: &mut Problems,
) -> Option<Rule> {
    let Some(field) = field else {
        return Some(rule);
    };
    let bytes = usize::try_from(*field.get_ref()).unwrap_or(usize::MAX);
    match rule.with_max_bytes(bytes) {
        Ok(bounded) => {
            value::number("max_bytes", Some(field), 0, MAX_BYTES, problems);
            Some(bounded)
        }
        Err(error) => {
            problems.add(field.span(), error);
            None
        }
    }
}
