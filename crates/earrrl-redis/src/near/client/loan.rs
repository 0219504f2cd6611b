//! What decisions within a client's share need, lent to the line in which the client is found: most need nothing
//! else of it.

use earrrl::algorithm::Moment;
use earrrl::internal::OneTime;
use earrrl::{Cost, Decision, Limit, Nanos, Rule};

use super::{Client, Due, Lent, Time};
use crate::algorithm;

/// Lent while an allowed request changes nothing else: where states are one time, what is unsent is on a list, and
/// there is no news. Nothing is lent by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loan {
    /// Until when, by this node's clock.
    until: Nanos,
    /// How far Redis's clock is ahead of that.
    offset: i64,
    /// Billionths of a unit that may be spent.
    room: u64,
    state: Moment,
    /// Of a client that was charged only what Redis does not have.
    unsent: Moment,
}

impl Default for Loan {
    fn default() -> Self {
        Self::from_words([0; 6])
    }
}

impl Loan {
    /// As it is stored. Moments fit 88 bits.
    #[inline]
    pub(crate) fn words(&self) -> [u64; 6] {
        let Self { until, offset, room, state: Moment(state), unsent: Moment(unsent) } = *self;
        let high = (state >> 64) as u32 as u64 | ((unsent >> 64) as u64) << 32;
        [until.get(), offset as u64, room, state as u64, unsent as u64, high]
    }

    #[inline]
    pub(crate) fn from_words([until, offset, room, state, unsent, high]: [u64; 6]) -> Self {
        let moment = |low: u64, high: i32| Moment(i128::from(high) << 64 | i128::from(low));
        Self {
            until: Nanos::new(until),
            offset: offset as i64,
            room,
            state: moment(state, high as i32),
            unsent: moment(unsent, (high >> 32) as i32),
        }
    }

    /// Allows a request and charges it, where that is all there is to do.
    #[inline]
    pub(crate) fn allow(&mut self, rule: &Rule, cost: Cost, time: Time) -> Option<Decision> {
        let room = self.room.checked_sub(u64::try_from(cost.billionths()).ok()?)?;
        if time.local > self.until || time.offset != self.offset || cost.is_zero() {
            return None;
        }
        let mut request = OneTime::judge(rule, self.state, time.redis(), cost)?;
        if !request.judgement().allowed {
            return None;
        }
        self.room = room;
        self.unsent = request.charged_to(self.unsent);
        self.state = request.charge();
        Some(request.decision())
    }
}

impl Client {
    /// Lends what it can. It is to get that back before anything else is done with it.
    pub(crate) fn lend(&mut self, limit: &Limit) -> Loan {
        self.loan(limit).unwrap_or_default()
    }

    fn loan(&mut self, limit: &Limit) -> Option<Loan> {
        if self.news || self.denied > 0 || self.due == Due::Never {
            return None;
        }
        let (until, share) = match self.due {
            Due::Soon => (self.until, self.share),
            // As long as it need not be exchanged any sooner.
            _ => (self.until.min(self.renew), self.share / 2.0),
        };
        let takes = algorithm::of(limit).takes(Cost::ONE) / 1e9;
        let room = ((share - self.spent()) / takes) as u64;
        let algorithm = algorithm::of(limit);
        let state = *algorithm.moment(self.state.as_mut()?)?;
        let unsent = *algorithm.moment(self.unsent.state.as_mut()?)?;
        self.lent = Lent { room, takes };
        Some(Loan { until, offset: self.offset, room, state, unsent })
    }

    /// Gets back what it lent, with what was charged to it.
    pub(crate) fn get_back(&mut self, limit: &Limit, loan: Loan) {
        let lent = std::mem::take(&mut self.lent);
        let spent = lent.room.saturating_sub(loan.room);
        if spent == 0 {
            return;
        }
        for (state, now) in [(&mut self.state, loan.state), (&mut self.unsent.state, loan.unsent)] {
            if let Some(moment) =
                state.as_mut().and_then(|state| algorithm::of(limit).moment(state))
            {
                *moment = now;
            }
        }
        self.unsent.sum = self.unsent.sum + Cost::from_billionths(spent.into());
        self.unsent.spent += spent as f64 * lent.takes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::near::client::{Basis, Told};
    use earrrl::random::Random;
    use earrrl::{Mode, State};
    use std::time::Duration;

    /// Redis knows what the client knows, and gives it a share.
    fn exchange(
        client: &mut Client,
        limit: &Limit,
        time: Time,
        share: f64,
    ) -> Option<(State, Cost)> {
        let call = client.call(limit, Cost::ZERO, time, || time.local.get());
        let [renew, until] = [10, 20].map(|secs| time.local + Duration::from_secs(secs));
        let state = client.state.clone();
        let told = Told { state, share, until, renew, fresh: renew, others: 1, lacks: 0.0 };
        (client.due, client.listed) = (Due::Never, Due::Never);
        client.adopt(limit, &call, told, time);
        call.counted.map(|counted| (counted.state.unwrap(), counted.sum))
    }

    /// A client that lends decides, is listed and is sent as one that never does.
    #[test]
    fn what_is_lent_makes_no_difference() {
        for (text, lends) in [
            ("recent-average 1/s half-life=10s", true),
            ("recent-average 1/s half-life=10s leaky", true),
            ("gcra 1/s burst=20", true),
            ("fixed-window 20/1m", false),
        ] {
            let rule: Rule = text.parse().unwrap();
            let (limit, mut random, mut quick) = (rule.limit(), Random::new(7), 0);
            let (mut plain, mut lender) = (Client::default(), Client::default());
            let (mut loan, mut now) = (Loan::default(), Nanos::from_secs(1_700_000_000));
            for step in 0..40_000 {
                now = now + Duration::from_millis(random.below(1500));
                let time = Time { local: now, offset: step / 10_000 * 2_000_000_000 };
                if random.below(20) == 0 {
                    lender.get_back(limit, std::mem::take(&mut loan));
                    let share = algorithm::of(limit).takes(Cost::from_units(random.below(30)));
                    let sent = exchange(&mut plain, limit, time, share);
                    assert_eq!(sent, exchange(&mut lender, limit, time, share), "{text}, {step}");
                    continue;
                }
                let cost = Cost::from_billionths(u128::from(random.below(5)) * 500_000_000);
                let mode = if random.below(10) == 0 { Mode::Peek } else { Mode::Check };
                let expected = plain.decide(&rule, cost, mode, time, Basis::Share);
                let mut decision =
                    (mode == Mode::Check).then(|| loan.allow(&rule, cost, time)).flatten();
                quick += u32::from(decision.is_some());
                if decision.is_none() {
                    lender.get_back(limit, std::mem::take(&mut loan));
                    decision = lender.decide(&rule, cost, mode, time, Basis::Share);
                    loan = Loan::from_words(lender.lend(limit).words());
                }
                assert_eq!((decision, lender.due), (expected, plain.due), "{text}, {step}");
            }
            assert_eq!(quick > 5000, lends, "{text}: {quick}");
        }
    }
}
