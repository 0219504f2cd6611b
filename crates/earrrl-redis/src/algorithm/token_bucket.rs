//! Token bucket, credit pool and gcra. A record holds the instant at which the pool is full again,
//! as whole microseconds and the remaining ticks.

use std::time::Duration;

use earrrl::algorithm::{Moment, State, TokenBucket};
use earrrl::{Nanos, RuleError};

use super::fields::{FARTHEST, Fields, Packed, TICKS_PER_MICRO, in_two, span_micros};
use super::{OnRedis, Terms};

impl OnRedis for TokenBucket {
    /// Returns the refill and the capacity: a charge is a span of refill.
    fn charge_meaning(&self) -> [u64; 3] {
        let (amount, per) = self.refill().parts();
        let rate = amount.billionths() as f64 / per.as_nanos() as f64;
        let capacity = self.capacity().billionths();
        [rate.to_bits(), capacity as u64, (capacity >> 64) as u64]
    }

    fn check(&self, hold: Duration) -> Result<(), RuleError> {
        let nanos = self.full_ticks() / Self::TICKS_PER_NANO;
        let hold = i128::try_from(hold.as_nanos()).unwrap_or(i128::MAX);
        if nanos.saturating_add(hold) <= FARTHEST.as_nanos() as i128 {
            return Ok(());
        }
        let capacity = self.capacity();
        let refill = self.refill();
        let problem = format!(
            "{capacity} at {refill} takes over a hundred years to fill, more than Redis's clock can count exactly; \
             expected a smaller capacity, a faster refill or a shorter delay"
        );
        Err(RuleError::new(problem).of("capacity"))
    }

    /// Writes the price without its sign. The script has separate code for charging and for taking
    /// back.
    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let [full, held, price] = spans(self, terms);
        let step = ((full.0 / 4.0).ceil() + 1000.0).floor();
        packed.numbers(&[TICKS_PER_MICRO as f64, full.0, full.1, held.0, held.1]);
        let longest = span_micros(terms.hold().unwrap_or_default());
        let farthest = in_two(self.full_ticks()).0 + longest.ceil() + 1.0;
        packed.numbers(&[price.0, price.1, farthest, step, terms.linger_ms()]);
    }

    fn born_len(&self) -> usize {
        1
    }

    fn decode(&self, mut record: Fields<'_>, _now: Nanos) -> Option<State> {
        let time = record.whole(7)?;
        let rest = record.whole(4)?;
        let ticks = i128::from(time) * TICKS_PER_MICRO + i128::from(rest);
        Some(State::TokenBucket(Moment(ticks)))
    }

    fn max_exact_units(&self) -> Option<u64> {
        None
    }
}

/// Returns the time that fills the pool, the most that may be missing for a request that is held
/// back, and the price of the request.
fn spans(limit: &TokenBucket, terms: &Terms<'_>) -> [(f64, f64); 3] {
    let price = limit.price(terms.cost);
    // A full pool pays its whole capacity, although the price may be rounded up by a tick.
    let fits = terms.cost <= limit.capacity();
    let full = if fits {
        limit.full_ticks().max(price)
    } else {
        limit.full_ticks()
    };
    let held = terms.hold().filter(|_| fits).map_or((-1.0, 0.0), |max| {
        let ticks = i128::try_from(max.as_nanos()).unwrap_or(i128::MAX);
        in_two(
            ticks
                .saturating_mul(TokenBucket::TICKS_PER_NANO)
                .saturating_add(full),
        )
    });
    [in_two(full), held, in_two(price)]
}
