//! Every client's peak of its recent average rate.

use std::time::Duration;

use earrrl::{Algorithm as _, Moment, Nanos, Rate, RecentAverage, RuleError};

use crate::reading::LoggedRequest;

/// A log's clients and the greatest rate that a limit would have seen of each.
pub struct Peaks {
    /// The time in which a client's past comes to count half.
    pub half_life: Duration,
    /// The half-life is all that matters of it: strict, so that a rate depends on no limit.
    estimator: RecentAverage,
    /// By client's number.
    clients: Vec<ClientPeaks>,
    /// The number of requests.
    pub requests: u64,
}

/// The peak and the requests of a client.
#[derive(Clone, Copy, Default)]
pub struct ClientPeaks {
    state: Option<Moment>,
    /// Its greatest rate, a second.
    pub peak: f64,
    /// Its requests.
    pub requests: u64,
    /// Its first request, in nanoseconds since the epoch.
    pub first: u64,
    /// Its last request.
    pub last: u64,
}

impl Peaks {
    /// The peaks of requests in order, if a client's past counts half after `half_life`.
    ///
    /// # Errors
    /// Returns an error for a half-life that no rule can have.
    pub fn of(
        half_life: Duration,
        requests: impl Iterator<Item = LoggedRequest>,
    ) -> Result<Self, RuleError> {
        let mut peaks = Self::new(half_life)?;
        requests.for_each(|request| {
            peaks.add(request);
        });
        Ok(peaks)
    }

    /// Creates peaks without clients.
    ///
    /// # Errors
    /// Returns an error for a half-life that no rule can have.
    pub fn new(half_life: Duration) -> Result<Self, RuleError> {
        let estimator = RecentAverage::with_half_life(Rate::per_second(1)?, half_life)?;
        Ok(Self { half_life, estimator, clients: Vec::new(), requests: 0 })
    }

    /// Counts a request. Returns the rate before it, which a limit is compared with.
    pub fn add(&mut self, request: LoggedRequest) -> f64 {
        let place = request.client as usize;
        if place >= self.clients.len() {
            self.clients.resize(place + 1, ClientPeaks::default());
        }
        let (client, now) = (&mut self.clients[place], Nanos::new(request.time));
        let count = self.estimator.count(client.state.as_ref(), now);
        let rate = count / self.estimator.period_secs();
        client.peak = client.peak.max(rate);
        if client.requests == 0 {
            client.first = request.time;
        }
        client.last = request.time;
        client.requests += 1;
        if !request.cost.is_zero() {
            client.state = Some(self.estimator.charge(client.state, now, request.cost));
        }
        self.requests += 1;
        rate
    }

    /// The rate of a client that has just sent one request: the least that is worth a limit.
    pub fn of_one_request(&self) -> f64 {
        1.0 / self.estimator.period_secs()
    }

    /// The clients' peaks, the greatest first.
    pub fn descending(&self) -> Vec<f64> {
        self.worst().into_iter().map(|(_, client)| client.peak).collect()
    }

    /// All clients with their numbers, the worst first; among equals, the one that came first.
    pub fn worst(&self) -> Vec<(u32, ClientPeaks)> {
        let seen = (0u32..).zip(self.clients.iter().copied()).filter(|(_, c)| c.requests > 0);
        let mut clients: Vec<(u32, ClientPeaks)> = seen.collect();
        clients.sort_by(|(_, a), (_, b)| b.peak.total_cmp(&a.peak));
        clients
    }
}
