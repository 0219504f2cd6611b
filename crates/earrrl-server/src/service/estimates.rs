//! Estimates that are learned from the actual costs of committed reservations.

#[cfg(test)]
mod comparison;
mod decaying;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earrrl::{Charge, Cost, HoldId, HoldTerms, Nanos, RuleId};

use self::decaying::DecayingHistogram;
use super::attributes::Attributes;
use super::key::{Key, join};
use super::limit::PreparedLimit;
use crate::config::rule::EstimateConfig;
use crate::metrics::{Buckets, Family};

/// The most labels of a rule; another one replaces the label that was used least recently.
const MAX_LABELS: usize = 256;
/// The most costs that a label needs before its quantile is used.
const MAX_NEEDED: f64 = 100.0;
/// The upper bounds of the ratio of an actual cost to its estimate.
const RATIOS: [f64; 9] = [0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0];
/// The number of pending estimates up to which expired ones are kept.
const FEW_PENDING: usize = 1024;
/// The most pending estimates. If more than half as many are live, all are forgotten, and the
/// commits of their reservations teach nothing.
const MAX_PENDING: usize = 131_072;

/// The learned costs of every rule with the field `estimate`, and the estimates that wait for a
/// commit.
#[derive(Debug, Default)]
pub struct Estimates {
    by_rule: Mutex<BTreeMap<String, Arc<LearnedCosts>>>,
    pending: Mutex<Pending>,
}

/// The costs of one rule by label.
#[derive(Debug, Default)]
pub struct LearnedCosts {
    /// Hashes labels with a secret. A label is stored as its hash, so that long ones need no more
    /// memory, and nobody can choose labels that are taken for another.
    hasher: RandomState,
    costs: Mutex<Costs>,
}

#[derive(Debug, Default)]
struct Costs {
    by_label: HashMap<u64, LabelCosts>,
    /// The number of uses so far, by which the least recently used label is found.
    uses: u64,
    latest: f64,
    ratios: [u64; RATIOS.len() + 1],
    ratio_sum: f64,
}

#[derive(Debug, Default)]
struct LabelCosts {
    histogram: DecayingHistogram,
    used: u64,
}

/// The estimator of one active rule.
#[derive(Clone, Debug)]
pub struct Estimator {
    /// The settings of the rule.
    pub config: Arc<EstimateConfig>,
    learned: Arc<LearnedCosts>,
}

/// The estimate of one charge, which the commit of its reservation compares with the actual cost.
#[derive(Clone, Debug)]
pub(super) struct Estimate<'a> {
    estimator: &'a Estimator,
    label: u64,
    /// The estimate; `None` if the request has an estimate of its own.
    learned: Option<f64>,
}

#[derive(Debug)]
struct PendingEstimate {
    rule: RuleId,
    estimator: Estimator,
    label: u64,
    learned: Option<f64>,
}

#[derive(Debug, Default)]
struct Pending {
    by_id: HashMap<HoldId, (Nanos, Vec<PendingEstimate>)>,
    /// The number of entries above which the expired ones are removed.
    most: usize,
}

impl Estimates {
    /// Returns the estimator of the rule of this name. It keeps what it has learned when its
    /// settings change.
    pub(super) fn of_rule(&self, name: &str, config: &EstimateConfig) -> Estimator {
        let mut by_rule = lock(&self.by_rule);
        let learned = Arc::clone(by_rule.entry(name.to_owned()).or_default());
        Estimator {
            config: Arc::new(config.clone()),
            learned,
        }
    }

    /// Forgets the rules for which `keep` returns false.
    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        lock(&self.by_rule).retain(|name, _| keep(name));
    }

    /// Keeps the estimates of a reservation until its commit or its expiry.
    /// A charge that was granted less than its estimate is left out: its actual cost is cut off.
    pub(super) fn reserved<'a>(
        &self,
        id: HoldId,
        charges: &[Charge<'_>],
        (granted, estimates): (&[Cost], impl IntoIterator<Item = Option<Estimate<'a>>>),
        now: impl FnOnce() -> Nanos,
        terms: HoldTerms,
    ) {
        let each = charges.iter().zip(granted).zip(estimates);
        let parts = each.filter(|((charge, granted), _)| **granted >= charge.cost);
        let parts = parts.filter_map(|((charge, _), estimate)| {
            let Estimate {
                estimator,
                label,
                learned,
            } = estimate?;
            let estimator = estimator.clone();
            Some(PendingEstimate {
                rule: charge.rule,
                estimator,
                label,
                learned,
            })
        });
        let parts: Vec<_> = parts.collect();
        if parts.is_empty() {
            return;
        }
        let now = now();
        lock(&self.pending).insert(id, now + terms.ttl, parts, now);
    }

    /// Keeps the estimates of a prolonged reservation until its new expiry.
    pub(super) fn renewed(&self, id: HoldId, expiry: Nanos) {
        if let Some((until, _)) = lock(&self.pending).by_id.get_mut(&id) {
            *until = expiry;
        }
    }

    /// Learns from the actual costs of a reservation. A rule without an actual cost teaches
    /// nothing, since its estimate is not known to be right, and neither does a cost of 0: a
    /// released request did no work.
    pub(super) fn committed(
        &self,
        id: HoldId,
        now: impl FnOnce() -> Nanos,
        actual: impl Fn(RuleId) -> Option<Cost>,
    ) {
        let mut pending = lock(&self.pending);
        if pending.by_id.is_empty() {
            return; // Usually no rule learns, and the id need not be hashed.
        }
        let Some((_, parts)) = pending.by_id.remove(&id) else {
            return;
        };
        drop(pending);
        let now = now();
        for PendingEstimate {
            rule,
            estimator,
            label,
            learned,
        } in parts
        {
            if let Some(cost) = actual(rule).filter(|cost| !cost.is_zero()) {
                estimator.learn(label, learned, cost.as_f64().ceil(), now);
            }
        }
    }

    /// Returns the metrics of all rules with estimates.
    pub fn metrics(&self) -> Vec<Family> {
        let by_rule = lock(&self.by_rule);
        if by_rule.is_empty() {
            return Vec::new();
        }
        let mut latest = Vec::new();
        let mut labels = Vec::new();
        let mut commits = Vec::new();
        let mut ratios = Vec::new();
        for (rule, learned) in by_rule.iter() {
            let costs = lock(&learned.costs);
            latest.push((rule, costs.latest));
            labels.push((rule, costs.by_label.len() as f64));
            let buckets = Buckets::new(&RATIOS, &costs.ratios, costs.ratio_sum);
            let within = costs
                .ratios
                .iter()
                .zip(RATIOS)
                .filter(|(_, bound)| *bound <= 1.0);
            let within: u64 = within.map(|(count, _)| count).sum();
            let above = costs.ratios.iter().sum::<u64>() - within;
            for (result, count) in [("within", within), ("above", above)] {
                let names = vec![("rule", rule.clone()), ("result", result.to_owned())];
                commits.push((names, count as f64));
            }
            ratios.push((vec![("rule", rule.clone())], buckets));
        }
        let gauge = |name, help, values| Family::gauge(name, help).labelled("rule", values);
        let total = "Commits of learned estimates, by the result of the comparison.";
        vec![
            gauge("earrrl_estimate", "The latest learned estimate.", latest),
            gauge(
                "earrrl_estimate_labels",
                "Labels whose costs are known.",
                labels,
            ),
            Family::counter("earrrl_estimate_commits_total", total).with_labels(commits),
            Family::histograms(
                "earrrl_estimate_ratio",
                "Actual cost / learned estimate.",
                ratios,
            ),
        ]
    }
}

impl Pending {
    /// Adds the estimates of a reservation. The expired ones are at most as many as the live ones, and
    /// an insertion costs little on average.
    fn insert(&mut self, id: HoldId, expiry: Nanos, parts: Vec<PendingEstimate>, now: Nanos) {
        if self.by_id.len() >= self.most.max(FEW_PENDING) {
            self.by_id.retain(|_, (expiry, _)| *expiry > now);
            if self.by_id.len() > MAX_PENDING / 2 {
                self.by_id.clear();
            }
            self.most = 2 * self.by_id.len();
        }
        self.by_id.insert(id, (expiry, parts));
    }
}

impl Estimator {
    /// Returns the label of a request.
    pub(super) fn label(&self, request: &Attributes<'_>) -> Key {
        join(self.config.by.iter().map(|part| request.part(part)))
    }

    /// Returns the estimate of a charge: `given` if the request has one, or else what requests
    /// with this label cost, as far as the limit can ever let that pass.
    pub(super) fn estimate(
        &self,
        label: &[u8],
        given: Option<Cost>,
        limit: Option<&PreparedLimit>,
        now: Nanos,
    ) -> (Estimate<'_>, Cost) {
        let label = self.learned.hasher.hash_one(label);
        let cost = given.unwrap_or_else(|| {
            let learned = self.learned_cost(label, now);
            limit.map_or(learned, |limit| {
                learned.min(Cost::from_units(limit.quota.units.max(1)))
            })
        });
        let learned = given.is_none().then(|| cost.as_f64());
        (
            Estimate {
                estimator: self,
                label,
                learned,
            },
            cost,
        )
    }

    fn learned_cost(&self, label: u64, now: Nanos) -> Cost {
        let EstimateConfig {
            quantile,
            at_most,
            initial,
            half_life,
            ..
        } = *self.config;
        let mut costs = lock(&self.learned.costs);
        costs.uses += 1;
        let uses = costs.uses;
        // With fewer costs, the quantile would be the largest of them at best.
        let needed = (1.0 / (1.0 - quantile)).min(MAX_NEEDED);
        let learned = costs.by_label.get_mut(&label).and_then(|known| {
            known.used = uses;
            let enough = known.histogram.weight(now, half_life) >= needed;
            enough.then(|| known.histogram.quantile(quantile))
        });
        let learned = learned.map_or(initial, |units| Cost::from_units(units as u64));
        let cost = learned.min(at_most);
        costs.latest = cost.as_f64();
        cost
    }

    fn learn(&self, label: u64, learned: Option<f64>, actual: f64, now: Nanos) {
        let mut costs = lock(&self.learned.costs);
        costs.uses += 1;
        let uses = costs.uses;
        if costs.by_label.len() >= MAX_LABELS && !costs.by_label.contains_key(&label) {
            let oldest = costs.by_label.iter().min_by_key(|(_, known)| known.used);
            if let Some(oldest) = oldest.map(|(label, _)| *label) {
                costs.by_label.remove(&oldest);
            }
        }
        let known = costs.by_label.entry(label).or_default();
        known.used = uses;
        known.histogram.add(actual, now, self.config.half_life);
        if let Some(estimate) = learned {
            let ratio = actual / estimate;
            let bucket = RATIOS.iter().position(|bound| ratio <= *bound);
            costs.ratios[bucket.unwrap_or(RATIOS.len())] += 1;
            costs.ratio_sum += ratio;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The median cost of three models, and the standard deviation of its logarithm.
    const MODELS: [(&str, f64, f64); 3] = [
        ("small", 150.0, 0.5),
        ("large", 700.0, 0.8),
        ("reasoning", 2500.0, 0.6),
    ];

    pub(super) fn estimator(quantile: f64) -> Estimator {
        let config = EstimateConfig {
            by: Vec::new(),
            quantile,
            at_most: Cost::from_units(1_000_000),
            initial: Cost::from_units(1024),
            half_life: std::time::Duration::from_secs(86_400),
        };
        Estimates::default().of_rule("tokens", &config)
    }

    /// Returns random numbers between 0 and 1 (SplitMix64).
    fn uniform(state: &mut u64) -> f64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the model and the cost of a request.
    pub(super) fn request(state: &mut u64) -> (&'static str, f64) {
        let (model, median, deviation) = MODELS[(uniform(state) * 3.0) as usize % 3];
        let radius = (-2.0 * (1.0 - uniform(state)).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * uniform(state)).cos();
        (model, (median * (deviation * normal).exp()).ceil())
    }

    /// Returns the share of 20,000 requests above their estimate, after 1000 commits.
    fn share_above(quantile: f64, seed: u64) -> f64 {
        let estimator = estimator(quantile);
        let mut state = seed;
        let mut above = 0;
        for nth in 0..21_000 {
            let now = Nanos::from_secs(nth);
            let (model, actual) = request(&mut state);
            let (estimate, cost) = estimator.estimate(model.as_bytes(), None, None, now);
            above += u32::from(nth >= 1000 && actual > cost.as_f64());
            estimator.learn(estimate.label, estimate.learned, actual, now);
        }
        f64::from(above) / 20_000.0
    }

    #[test]
    fn the_share_above_the_estimate_is_that_of_the_quantile() {
        for seed in 1..=2 {
            for quantile in [0.5, 0.8, 0.9, 0.95, 0.99] {
                let share = share_above(quantile, seed);
                assert!(
                    (share - (1.0 - quantile)).abs() < 0.02,
                    "{quantile}: {share}"
                );
            }
        }
    }

    #[test]
    fn labels_are_bounded_and_the_least_recently_used_goes() {
        let estimator = estimator(0.95);
        let now = Nanos::ZERO;
        let learn = |label: &[u8]| {
            let (estimate, cost) = estimator.estimate(label, None, None, now);
            estimator.learn(estimate.label, estimate.learned, 10.0, now);
            cost
        };
        for _ in 0..30 {
            learn(b"kept");
        }
        assert_eq!(learn(b"kept"), Cost::from_units(10));
        for nth in 0_u32..10_000 {
            learn(&nth.to_le_bytes());
            if nth % 100 == 0 {
                assert_eq!(learn(b"kept"), Cost::from_units(10));
            }
        }
        assert_eq!(lock(&estimator.learned.costs).by_label.len(), MAX_LABELS);
    }

    #[test]
    fn pending_estimates_are_bounded_and_expired_ones_go() {
        let mut pending = Pending::default();
        let mut insert = |nth: usize, ttl: u64, now: Nanos| {
            let id = format!("{nth:032x}").parse().unwrap();
            pending.insert(
                id,
                now + std::time::Duration::from_secs(ttl),
                Vec::new(),
                now,
            );
            pending.by_id.len()
        };
        for nth in 0..10_000 {
            let now = Nanos::from_secs(nth as u64);
            assert!(insert(nth, 100, now) <= FEW_PENDING, "{nth}");
        }
        let now = Nanos::from_secs(10_000);
        let most = (10_000..310_000).map(|nth| insert(nth, 100, now)).max();
        assert!(most.is_some_and(|most| (MAX_PENDING / 2..=MAX_PENDING).contains(&most)));
    }
}
