//! The field `estimate` of a rule.

use std::time::Duration;

use earrrl::{Cost, Quota, Rule};

use crate::config::attribute::{KeyPart, key_parts};
use crate::config::problem::Problems;
use crate::config::{file, value};

const HALF_LIFE: Duration = Duration::from_secs(86_400);

/// The settings of a rule's learned estimates.
#[derive(Clone, Debug, PartialEq)]
pub struct EstimateConfig {
    /// The parts of the label that separates requests of different costs; none if all requests of
    /// the rule are compared.
    pub by: Vec<KeyPart>,
    /// The share of comparable requests whose cost is at most the estimate.
    pub quantile: f64,
    /// The largest estimate.
    pub at_most: Cost,
    /// The estimate until enough costs are known.
    pub initial: Cost,
    /// The time after which a cost counts half as much.
    pub half_life: Duration,
}

/// Validates the settings of learned estimates. An estimate that can never pass would also never be
/// corrected, so the bounds must be within the rule's limit.
pub(super) fn estimate(
    file: &file::RuleTable,
    rule: Option<&Rule>,
    problems: &mut Problems,
) -> Option<EstimateConfig> {
    let field = file.estimate.as_ref()?;
    let table = field.get_ref();
    let by = table
        .by
        .as_ref()
        .map(|field| key_parts("estimate: by", field, problems));
    let by = by.unwrap_or_default();
    let half_life = table.half_life.as_ref().and_then(|field| {
        let parsed = value::duration("estimate: half_life", field, problems)?;
        if !(Duration::from_secs(1)..=Duration::from_secs(31_536_000)).contains(&parsed) {
            problems.add(field.span(), "estimate: half_life: expected 1s to 365d");
        }
        Some(parsed)
    });
    let mut problem = |message: String| problems.add(field.span(), message);
    let quantile = table.quantile.unwrap_or(0.95);
    if !(0.5..=0.999).contains(&quantile) {
        problem(format!(
            "estimate: quantile: {quantile} is not from 0.5 to 0.999"
        ));
    }
    let at_most = value::cost("estimate: at_most", &table.at_most, &mut problem)?;
    let initial = value::cost("estimate: initial", &table.initial, &mut problem)?;
    if initial > at_most || initial < Cost::ONE {
        problem(format!(
            "estimate: initial: {initial} is not from 1 to at_most, {at_most}"
        ));
    }
    if file
        .consistency
        .as_ref()
        .is_some_and(|field| field.get_ref() == "near")
    {
        problem("estimate: near rules have no reservations to learn from".to_owned());
    }
    if let Some(rule) = rule {
        if rule.limit().is_concurrent() {
            problem("estimate: concurrent counts requests, and their number is known".to_owned());
            return None;
        }
        let most = rule
            .max_cost()
            .min(Cost::from_units(Quota::of(rule.limit()).units));
        if at_most > most {
            problem(format!(
                "estimate: at_most: {at_most} can never pass; at most {most} can"
            ));
        }
    }
    let half_life = half_life.unwrap_or(HALF_LIFE);
    Some(EstimateConfig {
        by,
        quantile,
        at_most,
        initial,
        half_life,
    })
}
