//! Measures the peak of every client's recent average rate, and finds the gap between the peaks of the clients
//! that stand out and those of all others.

use std::time::Duration;

use earrrl::algorithm::RecentAverage;
use earrrl::{Rate, RuleError};

use crate::reading::LoggedRequest;

/// Measures the recent average rates of clients, independently of any limit.
pub(super) struct RateMeter {
    /// The averaging period in nanoseconds.
    period: f64,
    /// The rates of the clients, by their numbers.
    clients: Vec<MeasuredRate>,
}

/// The rate of a client.
#[derive(Debug, Clone, Copy, Default)]
struct MeasuredRate {
    /// The decayed count of the requests.
    count: f64,
    /// The greatest count before a request.
    peak: f64,
    /// The time of the last request.
    last: u64,
}

impl RateMeter {
    /// Creates a meter that has measured no request.
    ///
    /// # Errors
    /// Returns an error if no rule can have the half-life.
    pub(super) fn new(half_life: Duration) -> Result<Self, RuleError> {
        let average = RecentAverage::with_half_life(Rate::per_second(1)?, half_life)?;
        Ok(Self {
            period: average.period_secs() * 1e9,
            clients: Vec::new(),
        })
    }

    /// Adds a request to its client's rate. Returns the rate a second before the request, which a limit would compare
    /// with its threshold.
    // Inlined, since it is called about ten times for each request of a log: `suggest` takes 1.5 % fewer instructions.
    #[inline(always)]
    pub(super) fn add(&mut self, request: LoggedRequest) -> f64 {
        let place = request.client as usize;
        if place >= self.clients.len() {
            self.clients.resize(place + 1, MeasuredRate::default());
        }
        let client = &mut self.clients[place];
        let passed = request.time.saturating_sub(client.last) as f64;
        let before = client.count * (-passed / self.period).exp();
        *client = MeasuredRate {
            count: before + request.cost.as_f64(),
            peak: client.peak.max(before),
            last: request.time,
        };
        before * self.of_one_request()
    }

    /// Returns the greatest rate a second of each client.
    fn peaks(self) -> Vec<f64> {
        let one = self.of_one_request();
        self.clients
            .into_iter()
            .map(|client| client.peak * one)
            .collect()
    }

    /// Returns the rate of a client that has just sent its only request. A lower limit would not be
    /// useful.
    pub(super) fn of_one_request(&self) -> f64 {
        1e9 / self.period
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
        let mut count = 0;
        for request in requests {
            meter.add(request);
            count += 1;
        }
        Ok(Self {
            half_life,
            requests: count,
            of_one_request: meter.of_one_request(),
            peaks: meter.peaks(),
        })
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

// The constants of a gap were chosen by running `bench/suggest.py` on mixes of clients whose abusers are
// known.

/// The half-lives in seconds that are tried if the user sets none. Longer ones would make an office
/// that shares an address look like an abuser, since it sends steadily all day.
pub const HALF_LIVES: [u64; 2] = [10, 60];

/// The longer half-lives in seconds that are tried if no client stands out under the others.
const LONGER: [u64; 2] = [600, 3600];

/// The least ratio of the peak above a gap to the peak below it.
const WIDE: f64 = 2.0;

/// The least size of a burst, in requests, that makes a client worth a limit; steady requests count
/// as the burst that causes the same peak.
pub(super) const FEW: f64 = 10.0;

/// The least ratio of a client's peak to the median of all peaks, and to their 90th percentile.
const ABOVE_MEDIAN: f64 = 5.0;
const ABOVE_MOST: f64 = 3.0;

/// A gap between two neighbouring peak rates.
///
/// ```
/// use earrrl_logs::suggest::Gap;
///
/// let mut peaks = vec![20.0, 16.0];
/// peaks.extend([1.0; 98]);
/// let gap = Gap::parting(&peaks, 0.1, 5).ok_or("nobody stands out")?;
/// assert_eq!((gap.clients, gap.ratio(), gap.middle()), (2, 16.0, 4.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gap {
    /// The number of clients whose peaks are above the gap.
    pub clients: usize,
    /// The least peak above the gap, in cost units a second.
    pub above: f64,
    /// The greatest peak below the gap, in cost units a second. A client with a single request has
    /// no rate; its peak is the rate just after the request.
    pub below: f64,
}

impl Gap {
    /// Returns the lowest wide gap with at most `most` clients above, all of which stand out from
    /// the median and from nine clients in ten. `descending` holds all peaks. The search begins at
    /// the greatest peak, so that only few clients are ever above.
    pub fn parting(descending: &[f64], of_one_request: f64, most: usize) -> Option<Self> {
        let at = |place: usize| {
            descending
                .get(place)
                .map_or(0.0, |peak| peak.max(of_one_request))
        };
        let clients = descending.len();
        let least = (FEW * of_one_request)
            .max(ABOVE_MEDIAN * at(clients / 2))
            .max(ABOVE_MOST * at((clients / 10).max(1)));
        let pairs = descending.iter().zip(descending.get(1..)?).take(most);
        let gaps = pairs.zip(1..).map(|((&above, &below), clients)| {
            let below = below.max(of_one_request);
            Self {
                clients,
                above,
                below,
            }
        });
        gaps.take_while(|gap| gap.above >= least)
            .filter(|gap| gap.ratio() >= WIDE)
            .last()
    }

    /// Creates a gap between these two peaks, with one client above.
    #[cfg(test)]
    pub(super) fn between(above: f64, below: f64) -> Self {
        Self {
            clients: 1,
            above,
            below,
        }
    }

    /// Returns the ratio of the peak above the gap to the peak below it.
    pub fn ratio(&self) -> f64 {
        self.above / self.below
    }

    /// Returns the geometric mean of the peaks on both sides of the gap.
    pub fn middle(&self) -> f64 {
        (self.above * self.below).sqrt()
    }
}

/// The clients' peak rates under each half-life that was tried, with the gaps between them.
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
/// # use earrrl_logs::suggest::{Sweep, judge};
/// # use std::time::Duration;
/// let minute = [Duration::from_secs(60)];
/// let sweep = Sweep::new(&minute, |clients| clients / 100, || held.requests())?;
/// let gap = sweep.gap().ok_or("nobody stands out")?;
/// assert_eq!((gap.clients, sweep.peaks().clients()), (1, 190));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sweep {
    /// The peaks and the gap of each half-life, in the order in which the half-lives were given.
    pub tried: Vec<(Peaks, Option<Gap>)>,
    /// The index of the half-life under which the most clients stand out. Among equals it is the
    /// one with the widest gap.
    pub chosen: usize,
    /// The greatest number of clients that a suggested limit may affect.
    pub most: usize,
    /// The usual half-lives that were not asked for, under which clients stand out, with the number
    /// of these clients. Filled by [`Sweep::look_further`].
    pub elsewhere: Vec<(Duration, usize)>,
    /// The peaks that [`Sweep::look_further`] has measured.
    further: Vec<Peaks>,
    /// The addresses of many people that [`Sweep::spare`] was given.
    pub(super) crowds: Vec<u32>,
}

impl Sweep {
    /// Measures the requests, which must be in the order of their times, under each half-life. At
    /// most a share of the clients may stand out.
    ///
    /// # Errors
    /// Returns an error if no rule can have one of the half-lives.
    pub fn new<I: Iterator<Item = LoggedRequest>>(
        half_lives: &[Duration],
        most: impl Fn(usize) -> usize,
        requests: impl Fn() -> I + Sync,
    ) -> Result<Self, RuleError> {
        let peaks = measured(half_lives, requests)?.into_iter();
        let tried: Vec<(Peaks, Option<Gap>)> = peaks.map(|peaks| (peaks, None)).collect();
        let mut sweep = Self {
            most: tried.first().map_or(0, |(peaks, _)| most(peaks.clients())),
            tried,
            chosen: 0,
            elsewhere: Vec::new(),
            further: Vec::new(),
            crowds: Vec::new(),
        };
        sweep.choose(&[]);
        Ok(sweep)
    }

    /// Finds the gaps above the peaks of `crowds`: addresses of many people, none of whom stands out.
    pub fn spare(&mut self, crowds: Vec<u32>) {
        if !crowds.is_empty() {
            self.choose(&crowds);
            self.crowds = crowds;
        }
    }

    /// Finds the gaps, and chooses the half-life under which the most clients stand out.
    fn choose(&mut self, crowds: &[u32]) {
        let mut best = (0, 0.0);
        for (place, (peaks, gap)) in self.tried.iter_mut().enumerate() {
            let descending = peaks.descending();
            let of_crowds = crowds.iter().map(|&client| peaks.peak(client));
            let greatest = of_crowds.fold(0.0, f64::max);
            let faster = descending.partition_point(|&peak| peak > greatest);
            *gap = Gap::parting(&descending, peaks.of_one_request, self.most.min(faster));
            let caught = gap.map_or((0, 0.0), |gap| (gap.clients, gap.ratio()));
            if place == 0 || caught > best {
                (self.chosen, best) = (place, caught);
            }
        }
    }

    /// Tries the other usual half-lives if no client stands out.
    ///
    /// # Errors
    /// Returns an error if no rule can have one of the half-lives.
    pub fn look_further<I: Iterator<Item = LoggedRequest>>(
        &mut self,
        requests: impl Fn() -> I + Sync,
    ) -> Result<(), RuleError> {
        if self.gap().is_some() {
            return Ok(());
        }
        let usual = HALF_LIVES.into_iter().chain(LONGER);
        let mut others: Vec<Duration> = usual.map(Duration::from_secs).collect();
        others.retain(|&half_life| {
            let mut tried = self.tried.iter().map(|(peaks, _)| peaks.half_life);
            tried.all(|tried| tried != half_life)
        });
        for peaks in measured(&others, requests)? {
            let half_life = peaks.half_life;
            let gap = Gap::parting(&peaks.descending(), peaks.of_one_request, self.most);
            self.elsewhere
                .extend(gap.map(|gap| (half_life, gap.clients)));
            self.further.push(peaks);
        }
        Ok(())
    }

    /// Returns the peaks under a half-life if they were measured.
    pub(super) fn under(&self, half_life: Duration) -> Option<&Peaks> {
        let tried = self.tried.iter().map(|(peaks, _)| peaks);
        let mut measured = tried.chain(&self.further);
        measured.find(|peaks| peaks.half_life == half_life)
    }

    /// Returns the peaks under the chosen half-life.
    pub fn peaks(&self) -> &Peaks {
        &self.tried[self.chosen].0
    }

    /// Returns the gap below the clients that stand out; `None` if no client does.
    pub fn gap(&self) -> Option<Gap> {
        self.tried[self.chosen].1
    }
}

/// The number of requests from which on measuring takes longer than starting a thread.
const MANY: usize = 10_000;

/// Measures the peaks of requests under each half-life, each in a thread of its own if there are many requests.
fn measured<I: Iterator<Item = LoggedRequest>>(
    half_lives: &[Duration],
    requests: impl Fn() -> I + Sync,
) -> Result<Vec<Peaks>, RuleError> {
    if requests().size_hint().1.is_some_and(|most| most < MANY) {
        let peaks = half_lives.iter();
        return peaks
            .map(|&half_life| Peaks::of(half_life, requests()))
            .collect();
    }
    let requests = &requests;
    std::thread::scope(|scope| {
        let peaks = |&half_life| scope.spawn(move || Peaks::of(half_life, requests()));
        let threads: Vec<_> = half_lives.iter().map(peaks).collect();
        let peaks = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        peaks.collect()
    })
}

#[cfg(test)]
mod gap_tests {
    use super::*;

    #[test]
    fn where_clients_are_parted() {
        let calm = [0.5; 40];
        let above = |peaks: &[f64], most| {
            let all = [peaks, &calm].concat();
            Gap::parting(&all, 0.1, most).map(|gap| gap.clients)
        };
        assert_eq!(above(&[50.0, 40.0, 0.9], 9), Some(2));
        assert_eq!(above(&[50.0, 40.0, 0.9], 2), Some(2));
        assert_eq!(
            above(&[50.0, 40.0, 0.9], 1),
            None,
            "the worst does not stand out from the second"
        );
        assert_eq!(above(&[50.0, 40.0, 0.9], 0), None);
        assert_eq!(
            above(&[300.0, 70.0, 9.0], 9),
            Some(3),
            "abusers differ among themselves"
        );
        assert_eq!(
            above(&[20.0, 2.4, 1.0], 9),
            Some(1),
            "less than five times the median"
        );
        assert_eq!(
            above(&[9.0, 6.0, 4.1, 2.8, 1.5, 1.0], 9),
            None,
            "no gap is wide"
        );
        assert_eq!(above(&[0.9], 9), None, "nobody has sent much");
        assert_eq!(
            Gap::parting(&[50.0, 0.9, 0.0], 0.1, 9).map(|gap| gap.clients),
            Some(1)
        );
        assert_eq!(
            Gap::parting(&[50.0], 0.1, 9),
            None,
            "one client has no neighbour"
        );
        assert_eq!(Gap::parting(&[], 0.1, 9), None);
    }
}
