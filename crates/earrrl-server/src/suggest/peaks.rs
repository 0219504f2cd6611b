//! Every client's peak of its recent average rate.

use std::time::Duration;

use earrrl::{Algorithm as _, Moment, Nanos, Rate, RecentAverage, RuleError};

use crate::replay::Request;

/// A log's clients and the greatest rate that a limit would have seen of each.
pub(crate) struct Peaks {
    /// The half-life is all that matters of it: strict, so that a rate depends on no limit.
    estimator: RecentAverage,
    /// By client's number.
    clients: Vec<Client>,
    /// How many requests there were.
    pub(crate) requests: u64,
}

#[derive(Clone, Copy, Default)]
struct Client {
    state: Option<Moment>,
    peak: f64,
    /// Whether it has sent anything.
    seen: bool,
}

impl Peaks {
    /// No clients yet, whose past will count half after `half_life`.
    ///
    /// # Errors
    /// A half-life that no rule can have.
    pub(crate) fn new(half_life: Duration) -> Result<Self, RuleError> {
        let estimator = RecentAverage::with_half_life(Rate::per_second(1)?, half_life)?;
        Ok(Self { estimator, clients: Vec::new(), requests: 0 })
    }

    /// Counts a request; gives the rate before it, which is what a limit is compared with.
    pub(crate) fn add(&mut self, request: Request) -> f64 {
        let place = request.client as usize;
        if place >= self.clients.len() {
            self.clients.resize(place + 1, Client::default());
        }
        let (client, now) = (&mut self.clients[place], Nanos::new(request.time));
        let count = self.estimator.count(client.state.as_ref(), now);
        let rate = count / self.estimator.period_secs();
        client.peak = client.peak.max(rate);
        client.seen = true;
        if !request.cost.is_zero() {
            client.state = Some(self.estimator.charge(client.state, now, request.cost));
        }
        self.requests += 1;
        rate
    }

    /// The rate of a client that has just sent one request: the least that is worth a limit.
    pub(crate) fn of_one_request(&self) -> f64 {
        1.0 / self.estimator.period_secs()
    }

    /// The clients' peaks, the greatest first.
    pub(crate) fn descending(&self) -> Vec<f64> {
        let seen = self.clients.iter().filter(|client| client.seen);
        let mut peaks: Vec<f64> = seen.map(|client| client.peak).collect();
        peaks.sort_by(|a, b| b.total_cmp(a));
        peaks
    }
}
