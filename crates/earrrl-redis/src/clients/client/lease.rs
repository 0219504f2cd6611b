//! The fields that are needed to allow a request within this node's share. They are kept in one
//! cache line beside the index entry, so that most decisions touch nothing else.

use earrrl::algorithm::Moment;
use earrrl::internal::WordRequest;
use earrrl::{Cost, Decision, Limit, Nanos, Rule};

use super::{Client, LocalTime, Urgency};
use crate::algorithm;

/// A copy of the fields of a client by which requests are allowed as long as nothing else about the
/// client changes. A client has a lease only if its state is a single instant, it is queued for an
/// exchange, and its last snapshot was applied. The default lease allows nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    /// The end of the lease by this node's clock.
    until: Nanos,
    /// The nanoseconds by which Redis's clock is ahead of this node's.
    offset: i64,
    /// The cost that may still be charged to the lease, in billionths of a unit.
    headroom: u64,
    state: Moment,
    /// The state of a client that was charged only the charges that Redis lacks.
    unsent: Moment,
}

impl Default for Lease {
    fn default() -> Self {
        Self::from_words([0; 6])
    }
}

impl Lease {
    /// Returns the lease as it is stored in an index line. Both instants fit in 88 bits.
    #[inline]
    pub(crate) fn words(&self) -> [u64; 6] {
        let Self {
            until,
            offset,
            headroom,
            state: Moment(state),
            unsent: Moment(unsent),
        } = *self;
        let high = (state >> 64) as u32 as u64 | ((unsent >> 64) as u64) << 32;
        [
            until.get(),
            offset as u64,
            headroom,
            state as u64,
            unsent as u64,
            high,
        ]
    }

    #[inline]
    pub(crate) fn from_words([until, offset, headroom, state, unsent, high]: [u64; 6]) -> Self {
        let moment = |low: u64, high: i32| Moment(i128::from(high) << 64 | i128::from(low));
        Self {
            until: Nanos::new(until),
            offset: offset as i64,
            headroom,
            state: moment(state, high as i32),
            unsent: moment(unsent, (high >> 32) as i32),
        }
    }

    /// Allows a request and charges it. Returns `None` if the request must be decided by the client
    /// itself.
    #[inline]
    pub(crate) fn allow(&mut self, rule: &Rule, cost: Cost, time: LocalTime) -> Option<Decision> {
        let headroom = self
            .headroom
            .checked_sub(u64::try_from(cost.billionths()).ok()?)?;
        if time.local > self.until || time.offset != self.offset || cost.is_zero() {
            return None;
        }
        let mut request = WordRequest::judge(rule, self.state.0, time.redis(), cost)?;
        if !request.judgement().allowed {
            return None;
        }
        let unsent = request.charged_to(self.unsent.0)?;
        let state = request.charge()?;
        (self.unsent, self.state) = (Moment(unsent), Moment(state));
        self.headroom = headroom;
        Some(request.decision())
    }
}

impl Client {
    /// Returns a lease. It must be reclaimed before the client is used in any other way.
    pub(crate) fn lease(&mut self, limit: &Limit) -> Lease {
        self.try_lease(limit).unwrap_or_default()
    }

    fn try_lease(&mut self, limit: &Limit) -> Option<Lease> {
        if self.updated || self.denials > 0 || self.urgency == Urgency::None {
            return None;
        }
        let (until, share) = match self.urgency {
            Urgency::Urgent => (self.until, self.share),
            // A request beyond these bounds makes the exchange urgent, so it must not be decided by
            // the lease.
            _ => (self.until.min(self.renew), self.share / 2.0),
        };
        let algorithm = algorithm::of(limit);
        let takes = algorithm.takes(Cost::ONE) / 1e9;
        let headroom = ((share - self.spent(limit)) / takes) as u64;
        let state = *algorithm.moment(self.state.as_mut()?)?;
        let unsent = *algorithm.moment(self.unsent.state.as_mut()?)?;
        self.leased = headroom;
        Some(Lease {
            until,
            offset: self.offset,
            headroom,
            state,
            unsent,
        })
    }

    /// Ends a lease, and charges the client with everything that was charged to the lease.
    pub(crate) fn reclaim(&mut self, limit: &Limit, lease: Lease) {
        let spent = std::mem::take(&mut self.leased).saturating_sub(lease.headroom);
        if spent == 0 {
            return;
        }
        let algorithm = algorithm::of(limit);
        for (state, now) in [
            (&mut self.state, lease.state),
            (&mut self.unsent.state, lease.unsent),
        ] {
            if let Some(moment) = state.as_mut().and_then(|state| algorithm.moment(state)) {
                *moment = now;
            }
        }
        self.unsent.sum = self.unsent.sum + Cost::from_billionths(spent.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::client::{Authority, Snapshot, Urgency};
    use earrrl::random::Random;
    use earrrl::{Mode, State};
    use std::time::Duration;

    /// Exchanges a client with a simulated Redis that has the same state, and gives the client a
    /// share.
    fn exchange(
        client: &mut Client,
        limit: &Limit,
        time: LocalTime,
        share: f64,
    ) -> Option<(State, Cost)> {
        let ttl = Duration::from_secs(20);
        let call = client.call(limit, Cost::ZERO, time, ttl, || time.local.get());
        let [renew, until] = [10, 20].map(|secs| time.local + Duration::from_secs(secs));
        let state = client.state.clone();
        let fresh = renew;
        let others = 1;
        let missing = 0.0;
        let part = 0.5;
        let snapshot = Snapshot {
            state,
            share,
            until,
            renew,
            fresh,
            others,
            missing,
            part,
        };
        (client.urgency, client.queued) = (Urgency::None, Urgency::None);
        client.apply(limit, &call, snapshot, time);
        call.contribution
            .map(|sent| (sent.pending.state.unwrap(), sent.pending.sum))
    }

    /// A client with a lease makes the same decisions and exchanges as one without.
    #[test]
    fn a_lease_makes_no_difference() {
        for (text, leases) in [
            ("recent-average 1/s half-life=10s", true),
            ("recent-average 1/s half-life=10s leaky", true),
            ("gcra 1/s burst=20", true),
            ("fixed-window 20/1m", false),
        ] {
            let rule: Rule = text.parse().unwrap();
            let limit = rule.limit();
            let mut random = Random::new(7);
            let mut quick = 0;
            let mut plain = Client::default();
            let mut lessor = Client::default();
            let mut lease = Lease::default();
            let mut now = Nanos::from_secs(1_700_000_000);
            for step in 0..40_000 {
                now = now + Duration::from_millis(random.below(1500));
                let time = LocalTime {
                    local: now,
                    offset: step / 10_000 * 2_000_000_000,
                };
                if random.below(20) == 0 {
                    lessor.reclaim(limit, std::mem::take(&mut lease));
                    let share = algorithm::of(limit).takes(Cost::from_units(random.below(30)));
                    let sent = exchange(&mut plain, limit, time, share);
                    assert_eq!(
                        sent,
                        exchange(&mut lessor, limit, time, share),
                        "{text}, {step}"
                    );
                    continue;
                }
                let cost = Cost::from_billionths(u128::from(random.below(5)) * 500_000_000);
                let mode = if random.below(10) == 0 {
                    Mode::Peek
                } else {
                    Mode::Check
                };
                let expected = plain.decide(&rule, cost, mode, time, Authority::Share);
                let mut decision = (mode == Mode::Check)
                    .then(|| lease.allow(&rule, cost, time))
                    .flatten();
                quick += u32::from(decision.is_some());
                if decision.is_none() {
                    lessor.reclaim(limit, std::mem::take(&mut lease));
                    decision = lessor.decide(&rule, cost, mode, time, Authority::Share);
                    lease = Lease::from_words(lessor.lease(limit).words());
                }
                assert_eq!(
                    (decision, lessor.urgency),
                    (expected, plain.urgency),
                    "{text}, {step}"
                );
            }
            assert_eq!(quick > 5000, leases, "{text}: {quick}");
        }
    }
}
