//! A histogram of costs whose weights halve with time.

use std::time::Duration;

use earrrl::Nanos;

/// The number of buckets between a cost and twice that cost, so that a bucket is 2.2 % wide.
const PER_DOUBLING: f64 = 32.0;
/// The number of buckets: costs above 2^40 count in the last one.
const MAX_BUCKETS: usize = 40 * PER_DOUBLING as usize + 1;
/// The fraction of a half-life in which weights are left as they are.
const STEP: f64 = 1.0 / 64.0;

/// A histogram on a logarithmic scale, in which the weight of a cost halves with each half-life. It
/// grows to the largest cost, at most to 5 KB.
#[derive(Debug, Default)]
pub(super) struct DecayingHistogram {
    weights: Vec<f32>,
    decayed_at: Nanos,
}

impl DecayingHistogram {
    /// Adds a cost in whole units; a cost below 1 counts as 1.
    pub(super) fn add(&mut self, cost: f64, now: Nanos, half_life: Duration) {
        self.decay(now, half_life);
        // The cast of a float to an integer saturates, also for infinity and NaN.
        let bucket = (cost.max(1.0).log2() * PER_DOUBLING).ceil() as usize;
        let bucket = bucket.min(MAX_BUCKETS - 1);
        if bucket >= self.weights.len() {
            self.weights.resize(bucket + 1, 0.0);
        }
        self.weights[bucket] += 1.0;
    }

    /// Returns the weight of all costs.
    pub(super) fn weight(&mut self, now: Nanos, half_life: Duration) -> f64 {
        self.decay(now, half_life);
        self.total()
    }

    /// Returns the largest whole cost in the bucket of the quantile; 0 if there are no costs.
    pub(super) fn quantile(&self, quantile: f64) -> f64 {
        let wanted = quantile * self.total();
        let mut sum = 0.0;
        for (bucket, weight) in self.weights.iter().enumerate() {
            sum += f64::from(*weight);
            if sum > 0.0 && sum >= wanted {
                return (bucket as f64 / PER_DOUBLING).exp2().floor();
            }
        }
        0.0
    }

    fn total(&self) -> f64 {
        self.weights.iter().map(|weight| f64::from(*weight)).sum()
    }

    /// Lowers all weights by the time since they were lowered last. Short times are left to a later
    /// call, since each call visits every bucket.
    fn decay(&mut self, now: Nanos, half_life: Duration) {
        if self.weights.is_empty() {
            self.decayed_at = now;
        }
        let elapsed = now.get().saturating_sub(self.decayed_at.get()) as f64;
        let half_lives = elapsed / half_life.as_nanos() as f64;
        if half_lives >= STEP {
            let factor = (-half_lives).exp2() as f32;
            self.weights.iter_mut().for_each(|weight| *weight *= factor);
            self.decayed_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn whole_costs_are_found_within_a_bucket() {
        for cost in [1.0, 2.0, 3.0, 7.0, 100.0, 731.0, 8192.0, 1e9] {
            let mut histogram = DecayingHistogram::default();
            histogram.add(cost, Nanos::ZERO, DAY);
            let found = histogram.quantile(0.95);
            assert!((cost..=cost * 1.022).contains(&found), "{cost}: {found}");
        }
        let mut histogram = DecayingHistogram::default();
        for odd in [0.0, f64::NAN, f64::INFINITY] {
            histogram.add(odd, Nanos::ZERO, DAY);
        }
        assert_eq!(histogram.quantile(0.5), 1.0);
        assert_eq!(histogram.weights.len(), MAX_BUCKETS);
    }

    #[test]
    fn a_cost_counts_half_after_a_half_life() {
        let mut histogram = DecayingHistogram::default();
        (0..100).for_each(|_| histogram.add(1000.0, Nanos::ZERO, DAY));
        let later = Nanos::from_secs(2 * 86_400);
        assert_eq!(histogram.weight(later, DAY), 25.0);
        (0..24).for_each(|_| histogram.add(10.0, later, DAY));
        assert!(histogram.quantile(0.5) >= 1000.0);
        (0..2).for_each(|_| histogram.add(10.0, later, DAY));
        assert_eq!(histogram.quantile(0.5), 10.0);
    }
}
