//! Every client's peak of its recent average rate.

use std::time::Duration;

use earrrl::{Algorithm as _, Moment, Nanos, Rate, RecentAverage, RuleError};

use crate::reading::LoggedRequest;

/// The state of a client that has sent nothing: no client ever has this one.
const UNSEEN: i128 = i128::MIN;

/// Measures the recent average rates of clients, whatever the limit.
///
/// It takes 16 bytes a client; the 32 of an `Option<Moment>` would double the memory of a log with many.
pub(super) struct RateMeter {
    /// Strict, so that a rate depends on the half-life alone.
    estimator: RecentAverage,
    /// By client's number.
    states: Vec<i128>,
}

impl RateMeter {
    /// Creates a meter that has seen no request.
    ///
    /// # Errors
    /// Returns an error for a half-life that no rule can have.
    pub(super) fn new(half_life: Duration) -> Result<Self, RuleError> {
        let estimator = RecentAverage::with_half_life(Rate::per_second(1)?, half_life)?;
        Ok(Self { estimator, states: Vec::new() })
    }

    /// Counts a request. Returns the rate before it, which a limit is compared with.
    pub(super) fn add(&mut self, request: LoggedRequest) -> f64 {
        let place = request.client as usize;
        if place >= self.states.len() {
            self.states.resize(place + 1, UNSEEN);
        }
        let (state, now) = (&mut self.states[place], Nanos::new(request.time));
        let before = (*state != UNSEEN).then_some(Moment(*state));
        if !request.cost.is_zero() {
            *state = self.estimator.charge(before, now, request.cost).0;
        }
        self.estimator.count(before.as_ref(), now) / self.estimator.period_secs()
    }

    /// Returns the rate of a client that has just sent one request: the least that is worth a limit.
    fn of_one_request(&self) -> f64 {
        1.0 / self.estimator.period_secs()
    }
}

/// A log's clients and the greatest rate that a limit would have seen of each.
pub struct Peaks {
    /// The time in which a client's past comes to count half.
    pub half_life: Duration,
    /// The number of requests.
    pub requests: u64,
    /// The rate of a client that has just sent one request.
    pub of_one_request: f64,
    /// The greatest rate a second, by client's number.
    peaks: Vec<f64>,
}

impl Peaks {
    /// Measures the peaks of requests in order.
    ///
    /// # Errors
    /// Returns an error for a half-life that no rule can have.
    pub fn of(
        half_life: Duration,
        requests: impl Iterator<Item = LoggedRequest>,
    ) -> Result<Self, RuleError> {
        let mut meter = RateMeter::new(half_life)?;
        let of_one_request = meter.of_one_request();
        let mut peaks = Self { half_life, requests: 0, of_one_request, peaks: Vec::new() };
        for request in requests {
            let (place, rate) = (request.client as usize, meter.add(request));
            if place >= peaks.peaks.len() {
                peaks.peaks.resize(place + 1, 0.0);
            }
            peaks.peaks[place] = peaks.peaks[place].max(rate);
            peaks.requests += 1;
        }
        Ok(peaks)
    }

    /// Returns the number of clients.
    pub fn clients(&self) -> usize {
        self.peaks.len()
    }

    /// Returns the peak of a client by its number.
    pub(super) fn peak(&self, client: u32) -> f64 {
        self.peaks.get(client as usize).copied().unwrap_or(0.0)
    }

    /// Returns all peaks, the greatest first.
    pub fn descending(&self) -> Vec<f64> {
        let mut peaks = self.peaks.clone();
        peaks.sort_unstable_by(|a, b| b.total_cmp(a));
        peaks
    }

    /// Returns the clients with the greatest peaks, at most `most`; of equals, the ones that came first.
    pub(super) fn worst(&self, most: usize) -> Vec<u32> {
        let mut clients: Vec<u32> = (0u32..).take(self.peaks.len()).collect();
        clients.sort_unstable_by(|&a, &b| {
            self.peak(b).total_cmp(&self.peak(a)).then_with(|| a.cmp(&b))
        });
        clients.truncate(most);
        clients.shrink_to_fit();
        clients
    }
}
