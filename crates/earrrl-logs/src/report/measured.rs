//! Measures every client's rates as a rule would if it denied no request: the greatest rate, and
//! when the client was seen.

use earrrl::algorithm::{RecentAverage, State};
use earrrl::{Limit, Mode, Nanos, Policy, Rule};

use crate::reading::LoggedRequest;

/// The rates of all clients, as one rule measures them when it denies nothing.
pub(super) struct MeasuredRule {
    /// The limit that measures the rates: the rule's own, or an average that stands for it.
    limit: Limit,
    /// The history of each client, indexed by client number.
    clients: Vec<History>,
}

/// The greatest rate of a client, and when it was seen.
#[derive(Clone, Default)]
pub(super) struct History {
    state: Option<State>,
    /// The client's greatest rate a second, and the time of it in nanoseconds since the epoch.
    pub peak: (f64, u64),
    /// The time of the client's first request, in nanoseconds since the epoch.
    pub first: u64,
    /// The time of the client's last request, in nanoseconds since the epoch.
    pub last: u64,
}

impl MeasuredRule {
    /// Measures the rates of all requests under a rule.
    pub(super) fn of(rule: &Rule, requests: impl Iterator<Item = LoggedRequest>) -> Self {
        let mut measured = Self {
            limit: measuring(rule.limit()),
            clients: Vec::new(),
        };
        requests.for_each(|request| measured.add(request));
        measured
    }

    fn add(&mut self, request: LoggedRequest) {
        let place = request.client as usize;
        if place >= self.clients.len() {
            self.clients.resize(place + 1, History::default());
        }
        let client = &mut self.clients[place];
        let now = Nanos::new(request.time);
        let (state, decision) =
            self.limit
                .decide(client.state.take(), now, request.cost, Mode::Charge);
        client.state = state;
        if client.last == 0 {
            client.first = request.time;
        }
        client.last = request.time;
        let rate = decision.rate.unwrap_or(0.0);
        if rate > client.peak.0 || client.peak.1 == 0 {
            client.peak = (rate, request.time);
        }
    }

    /// Returns the history of the client with this number.
    pub(super) fn client(&self, number: u32) -> &History {
        &self.clients[number as usize]
    }

    /// Returns the greatest rates of all clients that were seen, in descending order.
    pub(super) fn peaks(&self) -> Vec<f64> {
        let seen = self.clients.iter().filter(|client| client.last > 0);
        let mut peaks: Vec<f64> = seen.map(|client| client.peak.0).collect();
        peaks.sort_by(|a, b| b.total_cmp(a));
        peaks
    }
}

/// Returns a limit that measures a rate: for a token bucket, which measures none, a recent average
/// with the same refill rate and the bucket's fill time as its period.
fn measuring(limit: &Limit) -> Limit {
    let Limit::TokenBucket(bucket) = limit else {
        return *limit;
    };
    let fill = std::time::Duration::try_from_secs_f64(bucket.fill_secs()).unwrap_or_default();
    RecentAverage::with_period(bucket.refill(), fill)
        .map_or(*limit, |average| average.with_policy(Policy::Strict).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use earrrl::Cost;

    fn requests(times: &[f64]) -> impl Iterator<Item = LoggedRequest> {
        times.iter().map(|secs| LoggedRequest {
            time: (1e18 + secs * 1e9) as u64,
            client: 0,
            cost: Cost::ONE,
        })
    }

    #[test]
    fn a_peak_is_above_the_limit_where_a_request_would_be_denied() {
        for rule in [
            "fixed-window 3/1m",
            "sliding-log 3/1m",
            "recent-average 1/m period=3m",
            "gcra 1/m burst=3",
        ] {
            let rule: Rule = rule.parse().unwrap();
            let limit = rule.limit().per_second() * (1.0 + 1e-9);
            for (times, over) in [(&[10.0, 10.0, 10.0][..], false), (&[10.0; 5], true)] {
                let measured = MeasuredRule::of(&rule, requests(times));
                assert_eq!(
                    measured.client(0).peak.0 > limit,
                    over,
                    "{rule}, {}",
                    times.len()
                );
            }
        }
        let rule: Rule = "fixed-window 3/1m".parse().unwrap();
        let measured = MeasuredRule::of(&rule, requests(&[1.0, 2.0, 300.0]));
        let client = measured.client(0);
        let second = |time: u64| (time - 1_000_000_000_000_000_000) / 1_000_000_000;
        assert_eq!(
            [client.first, client.peak.1, client.last].map(second),
            [1, 2, 300]
        );
    }
}
