//! Measures the peak of every client's recent average rate.

use std::time::Duration;

use earrrl::{Algorithm as _, Moment, Nanos, Rate, RecentAverage, RuleError};

use crate::reading::LoggedRequest;

/// The state of a client that has sent nothing; no measured client can have this value.
const UNSEEN: i128 = i128::MIN;

/// Measures the recent average rates of clients, independently of any limit.
///
/// A client takes 16 bytes. An `Option<Moment>` would take 32, which would double the memory for a
/// log with many clients.
pub(super) struct RateMeter {
    /// The average that measures rates. It is strict, so that the rates depend on the half-life
    /// alone.
    estimator: RecentAverage,
    /// The state of each client, indexed by client number.
    states: Vec<i128>,
}

impl RateMeter {
    /// Creates a meter that has measured no request.
    ///
    /// # Errors
    /// Returns an error if no rule can have the half-life.
    pub(super) fn new(half_life: Duration) -> Result<Self, RuleError> {
        let estimator = RecentAverage::with_half_life(Rate::per_second(1)?, half_life)?;
        Ok(Self {
            estimator,
            states: Vec::new(),
        })
    }

    /// Adds a request to its client's rate. Returns the rate before the request, which a limit
    /// would compare with its threshold.
    pub(super) fn add(&mut self, request: LoggedRequest) -> f64 {
        let place = request.client as usize;
        if place >= self.states.len() {
            self.states.resize(place + 1, UNSEEN);
        }
        let state = &mut self.states[place];
        let now = Nanos::new(request.time);
        let before = (*state != UNSEEN).then_some(Moment(*state));
        if !request.cost.is_zero() {
            *state = self.estimator.charge(before, now, request.cost).0;
        }
        self.estimator.count(before.as_ref(), now) / self.estimator.period_secs()
    }

    /// Returns the rate of a client that has just sent its only request. A lower limit would not be
    /// useful.
    fn of_one_request(&self) -> f64 {
        1.0 / self.estimator.period_secs()
    }
}

/// The peak rate of each client in a log, measured as a limit would measure it.
///
/// ```
/// # use earrrl_logs::reading::{HeldBack, LogReader, Selection};
/// # let selection = Selection {
/// #     format: None,
/// #     hints: Default::default(),
/// #     key: "client".parse()?,
/// #     prefixes: Default::default(),
/// #     costs: Default::default(),
/// #     filter: Default::default(),
/// # };
/// # let mut reader = LogReader::new(selection);
/// # let mut held = HeldBack::default();
/// # reader.read("../../testdata/logs/abuse.log.gz".as_ref(), |source| source, &mut |_, requests| held.extend(requests))?;
/// # held.sort();
/// use earrrl_logs::suggest::Peaks;
/// let peaks = Peaks::of(std::time::Duration::from_secs(60), held.requests())?;
/// assert_eq!((peaks.clients(), peaks.requests), (190, 6000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Peaks {
    /// The half-life of the measured averages: the time after which a request counts half.
    pub half_life: Duration,
    /// The number of requests in the log.
    pub requests: u64,
    /// The rate a second of a client that has just sent its only request.
    pub of_one_request: f64,
    /// The greatest rate a second of each client, indexed by client number.
    peaks: Vec<f64>,
}

impl Peaks {
    /// Measures the peaks of requests, which must be in the order of their times.
    ///
    /// # Errors
    /// Returns an error if no rule can have the half-life.
    pub fn of(
        half_life: Duration,
        requests: impl Iterator<Item = LoggedRequest>,
    ) -> Result<Self, RuleError> {
        let mut meter = RateMeter::new(half_life)?;
        let of_one_request = meter.of_one_request();
        let mut peaks = Self {
            half_life,
            requests: 0,
            of_one_request,
            peaks: Vec::new(),
        };
        for request in requests {
            let place = request.client as usize;
            let rate = meter.add(request);
            if place >= peaks.peaks.len() {
                peaks.peaks.resize(place + 1, 0.0);
            }
            peaks.peaks[place] = peaks.peaks[place].max(rate);
            peaks.requests += 1;
        }
        Ok(peaks)
    }

    /// Returns the number of clients in the log.
    pub fn clients(&self) -> usize {
        self.peaks.len()
    }

    /// Returns the peak of the client with this number.
    pub(super) fn peak(&self, client: u32) -> f64 {
        self.peaks.get(client as usize).copied().unwrap_or(0.0)
    }

    /// Returns all peaks in descending order.
    pub(crate) fn descending(&self) -> Vec<f64> {
        let mut peaks = self.peaks.clone();
        peaks.sort_unstable_by(|a, b| b.total_cmp(a));
        peaks
    }

    /// Returns the clients with the greatest peaks, at most `most` of them. Clients with equal
    /// peaks come in the order of their first requests.
    pub(super) fn worst(&self, most: usize) -> Vec<u32> {
        let mut clients: Vec<u32> = (0u32..).take(self.peaks.len()).collect();
        clients.sort_unstable_by(|&a, &b| {
            self.peak(b)
                .total_cmp(&self.peak(a))
                .then_with(|| a.cmp(&b))
        });
        clients.truncate(most);
        clients.shrink_to_fit();
        clients
    }
}
