//! The instants at which a client wants to send.

use std::time::Duration;

use earrrl::internal::Random;

use super::client::{Client, Pattern};

/// The instants at which one client wants to send, in order, in nanoseconds since the start of the
/// simulation.
pub(super) struct Schedule<'a> {
    client: &'a Client,
    random: Random,
    sent: u64,
    /// The last instant of a random client. The instants of other clients follow from their
    /// sequence numbers.
    last: f64,
}

impl<'a> Schedule<'a> {
    /// Returns the schedule of a client. Only random clients use `seed`.
    pub(super) fn new(client: &'a Client, seed: u64) -> Self {
        Self {
            client,
            random: Random::new(seed),
            sent: 0,
            last: 0.0,
        }
    }

    /// Returns the client's next instant; if `now` is given, the next one that is not before `now`.
    pub(super) fn after(&mut self, now: Option<u64>) -> Option<u64> {
        loop {
            let at = self.next()?;
            if now.is_none_or(|now| at >= now) {
                return Some(at);
            }
        }
    }

    fn next(&mut self) -> Option<u64> {
        let number = u128::from(self.sent);
        self.sent += 1;
        let offset = match self.client.pattern {
            Pattern::Steady(rate) => {
                // Computed from the number of requests, so that a rate of 5/3s has gaps of 0.6 s
                // without accumulating an error.
                let (amount, per) = rate.parts();
                number.checked_mul(per.as_nanos() * 1_000_000_000)? / amount.billionths()
            }
            Pattern::Random(rate) => {
                self.last -= (1.0 - self.random.unit()).ln() / rate.per_second_f64() * 1e9;
                self.last as u128
            }
            Pattern::Bursty { size, every, gap } => {
                let burst = number / u128::from(size);
                let place = number % u128::from(size);
                burst * every.as_nanos() + place * gap.as_nanos()
            }
        };
        let at = Duration::from_nanos(u64::try_from(offset).ok()?).checked_add(self.client.from)?;
        let ended = self.client.until.is_some_and(|until| at >= until);
        if ended {
            None
        } else {
            u64::try_from(at.as_nanos()).ok()
        }
    }
}
