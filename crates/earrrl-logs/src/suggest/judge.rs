//! Judges a log under the suggested limits, and lists the clients that the advice names.

use std::time::Duration;

use earrrl::RuleError;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use super::candidates::{JudgedLimit, best, rounds};
use super::peaks::RateMeter;
use super::{Peaks, Sweep};
use crate::reading::LoggedRequest;

/// The number of clients just below the suggested limit that are named.
const BELOW: usize = 5;

/// The number of the fastest clients that are named if none stands out.
const FASTEST: usize = 10;

/// The limits that were judged on a log, and the clients that the advice names.
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
/// let judged = judge(&sweep, held.requests())?;
/// assert_eq!((judged.suggested.clients, judged.touched.len()), (1, 1));
/// println!("{}", judged.suggested.rule);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct JudgedAdvice {
    /// Round limits, from the median client's peak rate to the first that affects no client.
    pub limits: Vec<JudgedLimit>,
    /// The suggested limit: in the middle of the gap, or above every client if there is no gap.
    pub suggested: JudgedLimit,
    /// The clients that the suggested limit affects, in descending order of their peaks.
    pub touched: Vec<SeenClient>,
    /// The clients with the greatest peaks among those that the suggested limit does not affect.
    pub below: Vec<SeenClient>,
    /// A limit under another half-life, and the clients that it affects in addition.
    pub second: Option<(JudgedLimit, Vec<SeenClient>)>,
}

/// A client that the advice names, and its requests.
#[derive(Debug, Clone, Copy)]
pub struct SeenClient {
    /// The number of the client in the table of clients.
    pub number: u32,
    /// The client's greatest rate a second, under the half-life of the limit for which it is named.
    pub peak: f64,
    /// The number of the client's requests.
    pub requests: u64,
    /// The time of the client's first request, in nanoseconds since the epoch.
    pub first: u64,
    /// The time of the client's last request, in nanoseconds since the epoch.
    pub last: u64,
}

/// Judges limits under the half-life that a sweep has chosen, and finds a second limit under
/// another half-life.
///
/// # Errors
/// Returns an error if a computed limit is not valid in a rule.
pub fn judge(
    sweep: &Sweep,
    requests: impl Iterator<Item = LoggedRequest>,
) -> Result<JudgedAdvice, RuleError> {
    let peaks = sweep.peaks();
    let gap = sweep.gap();
    let descending = peaks.descending();
    let limits = rounds(peaks, &descending)?;
    let suggested = best(peaks, gap, &descending)?;
    drop(descending);
    let named = peaks.worst(gap.map_or(FASTEST, |_| suggested.clients + BELOW));
    let (touched, below) = named.split_at(suggested.clients.min(named.len()));
    let second = match gap {
        Some(_) => second(sweep, touched)?,
        None => None,
    };
    let mut judged = JudgedAdvice {
        limits,
        suggested,
        touched: unseen(peaks, touched),
        below: unseen(peaks, below),
        second,
    };
    judged.count(requests, peaks.half_life)?;
    Ok(judged)
}

/// Returns the limit under another half-life that affects the most clients other than `touched`,
/// and these clients. The total of affected clients stays within the bound of the sweep.
fn second(
    sweep: &Sweep,
    touched: &[u32],
) -> Result<Option<(JudgedLimit, Vec<SeenClient>)>, RuleError> {
    let known: HashSet<u32, RandomState> = touched.iter().copied().collect();
    let mut found: Option<(JudgedLimit, Vec<SeenClient>)> = None;
    for (place, (peaks, gap)) in sweep.tried.iter().enumerate() {
        let Some(gap) = gap.filter(|_| place != sweep.chosen) else {
            continue;
        };
        let limit = best(peaks, Some(gap), &peaks.descending())?;
        let mut further = peaks.worst(limit.clients);
        further.retain(|client| !known.contains(client));
        let most = found.as_ref().map_or(0, |(_, further)| further.len());
        if further.len() > most && touched.len() + further.len() <= sweep.most {
            found = Some((limit, unseen(peaks, &further)));
        }
    }
    Ok(found)
}

/// Returns clients with their peaks; the numbers of their requests are still zero.
fn unseen(peaks: &Peaks, clients: &[u32]) -> Vec<SeenClient> {
    let client = |&number| SeenClient {
        number,
        peak: peaks.peak(number),
        requests: 0,
        first: 0,
        last: 0,
    };
    clients.iter().map(client).collect()
}

impl JudgedAdvice {
    /// Counts the requests that each limit denies, and the requests of the named clients.
    fn count(
        &mut self,
        requests: impl Iterator<Item = LoggedRequest>,
        half_life: Duration,
    ) -> Result<(), RuleError> {
        let mut meter = RateMeter::new(half_life)?;
        let mut second = match &self.second {
            Some((limit, _)) => Some(RateMeter::new(limit.half_life)?),
            None => None,
        };
        let limits = self.limits.iter().chain([&self.suggested]);
        let lowest = limits.fold(f64::INFINITY, |least, judged| least.min(judged.limit));
        // For each named client: the number of its requests, and the times of the first and the
        // last.
        let mut seen: HashMap<u32, (u64, u64, u64), RandomState> = self
            .named()
            .map(|client| (client.number, (0, u64::MAX, 0)))
            .collect();
        for request in requests {
            let rate = meter.add(request);
            if rate > lowest {
                let limits = self.limits.iter_mut().chain([&mut self.suggested]);
                limits.for_each(|judged| judged.requests += u64::from(rate > judged.limit));
            }
            if let (Some(meter), Some((limit, _))) = (&mut second, &mut self.second) {
                limit.requests += u64::from(meter.add(request) > limit.limit);
            }
            if let Some((requests, first, last)) = seen.get_mut(&request.client) {
                *requests += 1;
                *first = request.time.min(*first);
                *last = request.time;
            }
        }
        for client in self.named() {
            let found = seen.get(&client.number).copied().unwrap_or_default();
            (client.requests, client.first, client.last) = found;
        }
        Ok(())
    }

    /// Returns every client that the advice names.
    pub(super) fn named(&mut self) -> impl Iterator<Item = &mut SeenClient> {
        let further = self.second.iter_mut().flat_map(|(_, further)| further);
        self.touched
            .iter_mut()
            .chain(&mut self.below)
            .chain(further)
    }
}
