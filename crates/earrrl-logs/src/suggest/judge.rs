//! The limits that are judged on a log, and the clients that the advice names.

use std::time::Duration;

use earrrl::RuleError;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use super::candidates::{JudgedLimit, best, rounds};
use super::peaks::RateMeter;
use super::{Peaks, Sweep};
use crate::reading::LoggedRequest;

/// The number of clients below the suggested limit that are named.
const BELOW: usize = 5;

/// The limits that were judged on a log, and the clients that advice names.
pub struct JudgedAdvice {
    /// Round limits, from where most clients are to above the worst.
    pub limits: Vec<JudgedLimit>,
    /// The suggested limit: in the middle of the gap, or above everybody if there is none.
    pub suggested: JudgedLimit,
    /// The clients that the suggested limit touches, the worst first.
    pub touched: Vec<SeenClient>,
    /// The next clients below the suggested limit.
    pub below: Vec<SeenClient>,
    /// A limit under the other half-life, and the clients that it touches in addition.
    pub second: Option<(JudgedLimit, Vec<SeenClient>)>,
}

/// A client and its requests.
#[derive(Debug, Clone, Copy)]
pub struct SeenClient {
    /// Its number.
    pub number: u32,
    /// The greatest rate a second, under the half-life of the limit that names the client.
    pub peak: f64,
    /// The number of requests.
    pub requests: u64,
    /// The time of the first request, in nanoseconds since the epoch.
    pub first: u64,
    /// The time of the last request.
    pub last: u64,
}

/// Judges limits under the half-life that a sweep has chosen, and finds a second one under another half-life.
///
/// # Errors
/// Returns an error for a limit that no rule can have.
pub fn judge(
    sweep: &Sweep,
    requests: impl Iterator<Item = LoggedRequest>,
) -> Result<JudgedAdvice, RuleError> {
    let (peaks, gap) = (sweep.peaks(), sweep.gap());
    let descending = peaks.descending();
    let limits = rounds(peaks, &descending)?;
    let suggested = best(peaks, gap, &descending)?;
    drop(descending);
    let named = peaks.worst(suggested.clients + BELOW);
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
        second: second
            .map(|(place, limit, further)| (limit, unseen(&sweep.tried[place].0, &further))),
    };
    judged.count(requests, peaks.half_life)?;
    Ok(judged)
}

/// Returns the limit under another half-life that touches the most clients beside `touched`, with these clients,
/// as long as not too many are touched in all.
fn second(
    sweep: &Sweep,
    touched: &[u32],
) -> Result<Option<(usize, JudgedLimit, Vec<u32>)>, RuleError> {
    let known: HashSet<u32, RandomState> = touched.iter().copied().collect();
    let mut found: Option<(usize, JudgedLimit, Vec<u32>)> = None;
    for (place, (peaks, gap)) in sweep.tried.iter().enumerate() {
        let Some(gap) = gap.filter(|_| place != sweep.chosen) else { continue };
        let limit = best(peaks, Some(gap), &peaks.descending())?;
        let mut further = peaks.worst(limit.clients);
        further.retain(|client| !known.contains(client));
        let most = found.as_ref().map_or(0, |(_, _, further)| further.len());
        if further.len() > most && touched.len() + further.len() <= sweep.most {
            found = Some((place, limit, further));
        }
    }
    Ok(found)
}

/// Returns clients with their peaks, whose requests are not counted yet.
fn unseen(peaks: &Peaks, clients: &[u32]) -> Vec<SeenClient> {
    let client =
        |&number| SeenClient { number, peak: peaks.peak(number), requests: 0, first: 0, last: 0 };
    clients.iter().map(client).collect()
}

impl JudgedAdvice {
    /// Counts the requests that each limit denies, and those of the named clients.
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
        // The number, the first and the last of each client's requests.
        let mut seen: HashMap<u32, (u64, u64, u64), RandomState> =
            self.named().map(|client| (client.number, (0, u64::MAX, 0))).collect();
        for request in requests {
            let rate = meter.add(request);
            let limits = self.limits.iter_mut().chain([&mut self.suggested]);
            limits.for_each(|judged| judged.requests += u64::from(rate > judged.limit));
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
    fn named(&mut self) -> impl Iterator<Item = &mut SeenClient> {
        let further = self.second.iter_mut().flat_map(|(_, further)| further);
        self.touched.iter_mut().chain(&mut self.below).chain(further)
    }
}
