//! The highest rates of a rule's clients in the last day, and the limit that they suggest.
//!
//! The clients of the rule are surveyed from time to time, so that decisions do no work for it. The memory is bounded:
//! the peaks of the fastest clients are kept, and those are the clients that a limit touches first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use earrrl::{Limit, Nanos, Quota};

/// The number of clients whose peaks are kept in each of the two halves, about 40 bytes each.
pub const MAX_PEAKS: usize = 20_000;
/// The time for which a record is added to. The last two records are kept, so that the peaks are those of 12 to 24 hours.
const HALF_DAY: Duration = Duration::from_secs(12 * 3600);
/// The shortest and the longest time between two surveys.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The peaks of one rule's clients.
#[derive(Debug)]
pub struct ClientPeaks {
    /// The averaging time of the limit, in seconds. Rates that are measured over another time cannot be compared.
    period: u64,
    half_days: Mutex<HalfDays>,
}

#[derive(Debug, Default)]
struct HalfDays {
    present: HalfDay,
    previous: HalfDay,
    /// The instant from which the next survey is due.
    next: Nanos,
}

/// The peaks within half a day.
#[derive(Debug, Default)]
struct HalfDay {
    /// The instant of the first survey; `None` before it.
    since: Option<Nanos>,
    /// The greatest number of clients of one survey.
    clients: u64,
    /// The peak rates by the clients' fingerprints, in cost units per second.
    peaks: HashMap<u64, f64>,
}

/// A limit that touches at most a certain share of the clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuggestedLimit {
    /// The instant of the earliest survey.
    pub since: Nanos,
    /// The number of clients.
    pub clients: u64,
    /// The suggested limit, in cost units per second.
    pub rate: f64,
    /// The number of clients whose peaks are above the suggested limit.
    pub touched: u64,
}

/// The peaks of all rules, which stay across reloads.
#[derive(Debug, Default)]
pub struct PeaksByRule(Mutex<BTreeMap<String, Arc<ClientPeaks>>>);

impl PeaksByRule {
    /// Returns the peaks of the rule of this name. They begin anew if the limit has another averaging time.
    pub fn of_rule(&self, name: &str, limit: &Limit) -> Arc<ClientPeaks> {
        let mut by_rule = lock(&self.0);
        let period = Quota::of(limit).window.unwrap_or(1);
        let known = by_rule.get(name).filter(|known| known.period == period);
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let new = Arc::new(ClientPeaks {
            period,
            half_days: Mutex::default(),
        });
        by_rule.insert(name.to_owned(), Arc::clone(&new));
        new
    }
}

impl ClientPeaks {
    /// Returns true if it is time for the next survey.
    pub fn is_due(&self, now: Nanos) -> bool {
        lock(&self.half_days).next <= now
    }

    /// Notes the result of a survey that `took` some time: the number of all clients, and the rates of the fastest, each
    /// with the client's fingerprint. Surveys of a new rule follow each other quickly.
    pub fn note(
        &self,
        now: Nanos,
        took: Duration,
        clients: u64,
        rates: impl Iterator<Item = (u64, f64)>,
    ) {
        let mut half_days = lock(&self.half_days);
        let since = half_days
            .previous
            .since
            .or(half_days.present.since)
            .unwrap_or(now);
        half_days.next = now + self.pause(Duration::from_nanos(now.get() - since.get()), took);
        if half_days
            .present
            .since
            .is_some_and(|since| now >= since + HALF_DAY)
        {
            half_days.previous = std::mem::take(&mut half_days.present);
        }
        half_days.present.add(now, clients, rates);
    }

    /// Returns the time from one survey, which `took` some time, to the next. It is a quarter of the averaging time, in
    /// which a rate falls by a fifth at most, or the `age` of the record if that is shorter. Surveys take at most a
    /// twentieth of one processor.
    fn pause(&self, age: Duration, took: Duration) -> Duration {
        let usual = Duration::from_secs_f64(self.period as f64 / 4.0)
            .min(LONGEST_PAUSE)
            .min(age);
        usual.max(SHORTEST_PAUSE).max(20 * took)
    }

    /// Returns the limit that at most this share of the clients exceeded, rounded up to two digits. Returns `None`
    /// before the first survey, and if no client has sent requests.
    pub fn suggest(&self, share: f64) -> Option<SuggestedLimit> {
        let half_days = lock(&self.half_days);
        let present = &half_days.present;
        let previous = &half_days.previous;
        let since = previous.since.or(present.since)?;
        let newer = present.peaks.iter().map(|(fingerprint, rate)| {
            previous
                .peaks
                .get(fingerprint)
                .map_or(*rate, |earlier| rate.max(*earlier))
        });
        let older = previous.peaks.iter();
        let older = older.filter(|(fingerprint, _)| !present.peaks.contains_key(fingerprint));
        let mut rates: Vec<f64> = newer.chain(older.map(|(_, rate)| *rate)).collect();
        let clients = present
            .clients
            .max(previous.clients)
            .max(rates.len() as u64);
        let most = ((clients as f64 * share) as usize).min(rates.len().checked_sub(1)?);
        let (_, highest, _) = rates.select_nth_unstable_by(most, |a, b| b.total_cmp(a));
        let rate = rounded_up(*highest);
        let touched = rates.iter().filter(|peak| **peak > rate).count() as u64;
        Some(SuggestedLimit {
            since,
            clients,
            rate,
            touched,
        })
    }
}

impl HalfDay {
    fn add(&mut self, now: Nanos, clients: u64, rates: impl Iterator<Item = (u64, f64)>) {
        self.since.get_or_insert(now);
        self.clients = self.clients.max(clients);
        for (fingerprint, rate) in rates.filter(|(_, rate)| *rate > 0.0) {
            let peak = self.peaks.entry(fingerprint).or_default();
            *peak = peak.max(rate);
        }
        if self.peaks.len() > MAX_PEAKS {
            let mut rates: Vec<f64> = self.peaks.values().copied().collect();
            let (_, lowest, _) = rates.select_nth_unstable_by(MAX_PEAKS - 1, |a, b| b.total_cmp(a));
            let lowest = *lowest;
            self.peaks.retain(|_, peak| *peak > lowest);
        }
    }
}

/// Rounds up to two significant digits.
fn rounded_up(rate: f64) -> f64 {
    let unit = 10f64.powf(rate.log10().floor() - 1.0);
    // The quotient of a number that has two digits may come out a little above a whole number.
    (rate / unit * (1.0 - 1e-12)).ceil() * unit
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use earrrl::Rule;

    use super::*;

    const HOUR: u64 = 3600;

    fn peaks(rule: &str) -> Arc<ClientPeaks> {
        let rule: Rule = rule.parse().unwrap();
        PeaksByRule::default().of_rule("api", rule.limit())
    }

    fn note(peaks: &ClientPeaks, second: u64, rates: &[(u64, f64)]) {
        let now = Nanos::from_secs(second);
        peaks.note(now, Duration::ZERO, 100, rates.iter().copied());
    }

    fn suggested(peaks: &ClientPeaks, share: f64) -> (f64, u64) {
        let suggested = peaks.suggest(share).unwrap();
        (suggested.rate, suggested.touched)
    }

    #[test]
    fn the_limit_touches_the_share_of_clients_at_most() {
        let peaks = peaks("recent-average 1/s half-life=1m");
        assert_eq!(peaks.suggest(0.01), None);
        note(&peaks, 0, &[]);
        assert_eq!(peaks.suggest(0.01), None, "no client");
        note(&peaks, 15, &[(1, 50.0), (2, 4.11), (3, 3.0), (4, 0.0)]);
        for (share, expected) in [
            (0.0, (50.0, 0)),
            (0.009, (50.0, 0)),
            (0.01, (4.2, 1)),
            (0.02, (3.0, 2)),
            (0.5, (3.0, 2)),
        ] {
            assert_eq!(suggested(&peaks, share), expected, "{share}");
        }
    }

    #[test]
    fn peaks_last_for_half_a_day_at_least_and_for_a_day_at_most() {
        let peaks = peaks("recent-average 1/s half-life=1m");
        note(&peaks, 0, &[(1, 50.0)]);
        for (hour, expected) in [(1, 50.0), (12, 50.0), (23, 50.0), (24, 2.0)] {
            note(&peaks, hour * HOUR, &[(1, 1.0), (2, 2.0)]);
            assert_eq!(suggested(&peaks, 0.0).0, expected, "hour {hour}");
        }
        assert_eq!(
            peaks.suggest(0.0).unwrap().since,
            Nanos::from_secs(12 * HOUR)
        );
    }

    #[test]
    fn memory_is_bounded_and_the_highest_stay() {
        let peaks = peaks("recent-average 1/s half-life=1m");
        let many = 3 * MAX_PEAKS as u64;
        let rates: Vec<_> = (1..=many).map(|client| (client, client as f64)).collect();
        note(&peaks, 0, &rates);
        assert!(lock(&peaks.half_days).present.peaks.len() <= MAX_PEAKS);
        assert_eq!(suggested(&peaks, 0.0), (many as f64, 0));
    }

    #[test]
    fn surveys_are_due_by_the_averaging_time_and_by_their_own() {
        for (rule, age, took, seconds) in [
            ("recent-average 1/s period=40s", 0, 0, 1),
            ("recent-average 1/s period=40s", 5, 0, 5),
            ("recent-average 1/s period=40s", 100, 0, 10),
            ("gcra 10/s burst=1", 100, 0, 1),
            ("fixed-window 60/1h", 100, 0, 60),
            ("fixed-window 60/1h", 100, 4, 80),
        ] {
            let peaks = peaks(rule);
            assert!(peaks.is_due(Nanos::ZERO));
            note(&peaks, 0, &[]);
            let took = Duration::from_secs(took);
            peaks.note(Nanos::from_secs(age), took, 0, std::iter::empty());
            let due = Nanos::from_secs(age + seconds);
            assert!(!peaks.is_due(Nanos::new(due.get() - 1)), "{rule}");
            assert!(peaks.is_due(due), "{rule}");
        }
    }

    #[test]
    fn a_change_of_the_averaging_time_begins_anew() {
        let by_rule = PeaksByRule::default();
        let of = |text: &str| by_rule.of_rule("api", text.parse::<Rule>().unwrap().limit());
        let first = of("recent-average 1/s half-life=1m");
        assert!(Arc::ptr_eq(&first, &of("recent-average 5/s half-life=1m")));
        assert!(!Arc::ptr_eq(&first, &of("recent-average 5/s half-life=2m")));
    }
}
