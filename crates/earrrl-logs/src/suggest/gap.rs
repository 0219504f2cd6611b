//! The gap between the peak rates of clients that stand out and of all others.
//!
//! The constants are measured with `bench/suggest.py` on mixes of clients whose abusers are known.

use std::time::Duration;

use earrrl::RuleError;

use super::Peaks;
use crate::reading::LoggedRequest;

/// Half-lives that are tried unless one is given. Under longer ones, the address of an office looks
/// like an abuser: it sends more than others all day long, although never much at once.
pub const HALF_LIVES: [u64; 2] = [10, 60];

/// The least ratio of the peaks above and below a gap.
const WIDE: f64 = 2.0;

/// Requests in a burst, or their equivalent in a stream, that make a client worth a limit.
const FEW: f64 = 10.0;

/// The least ratio of a client's peak to the median, and to the 90th percentile, of all peaks.
const ABOVE_MEDIAN: f64 = 5.0;
const ABOVE_MOST: f64 = 3.0;

/// The distance between two clients whose peaks are neighbours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gap {
    /// The number of clients above the gap.
    pub clients: usize,
    /// The least peak above, a second.
    pub above: f64,
    /// The greatest peak below; of clients with one request only, that request's.
    pub below: f64,
}

impl Gap {
    /// Returns the lowest wide gap with at most `most` clients above, all of which stand out from the median and
    /// from nine clients in ten; `descending` holds all peaks. Searches from the top, so that no more than a
    /// few clients are ever above.
    pub fn parting(descending: &[f64], of_one_request: f64, most: usize) -> Option<Self> {
        let at = |place: usize| descending.get(place).map_or(0.0, |peak| peak.max(of_one_request));
        let clients = descending.len();
        let least = (FEW * of_one_request)
            .max(ABOVE_MEDIAN * at(clients / 2))
            .max(ABOVE_MOST * at((clients / 10).max(1)));
        let pairs = descending.iter().zip(descending.get(1..)?).take(most);
        let gaps = pairs.zip(1..).map(|((&above, &below), clients)| {
            let below = below.max(of_one_request);
            Self { clients, above, below }
        });
        gaps.take_while(|gap| gap.above >= least).filter(|gap| gap.ratio() >= WIDE).last()
    }

    /// A gap with one client above.
    #[cfg(test)]
    pub(super) fn between(above: f64, below: f64) -> Self {
        Self { clients: 1, above, below }
    }

    /// Returns the ratio of the peak above to the peak below.
    pub fn ratio(&self) -> f64 {
        self.above / self.below
    }

    /// Its middle, as far from either end.
    pub fn middle(&self) -> f64 {
        (self.above * self.below).sqrt()
    }
}

/// The peaks under every half-life that was tried, each with its gap.
pub struct Sweep {
    /// In the order of the half-lives.
    pub tried: Vec<(Peaks, Option<Gap>)>,
    /// The one under which the most clients stand out; of equals, the one with the widest gap.
    pub chosen: usize,
    /// The greatest number of clients that advice may touch.
    pub most: usize,
}

impl Sweep {
    /// Tries the half-lives on requests in order; at most a share of the clients may stand out.
    ///
    /// # Errors
    /// Returns an error for a half-life that no rule can have.
    pub fn new<I: Iterator<Item = LoggedRequest>>(
        half_lives: &[Duration],
        most: impl Fn(usize) -> usize,
        requests: impl Fn() -> I,
    ) -> Result<Self, RuleError> {
        let mut tried: Vec<(Peaks, Option<Gap>)> = Vec::with_capacity(half_lives.len());
        for &half_life in half_lives {
            let peaks = Peaks::of(half_life, requests())?;
            let most = most(peaks.clients());
            let gap = Gap::parting(&peaks.descending(), peaks.of_one_request, most);
            tried.push((peaks, gap));
        }
        let caught = |place: usize| {
            let gap: Option<Gap> = tried[place].1;
            gap.map_or((0, 0.0), |gap| (gap.clients, gap.ratio()))
        };
        let chosen = (1..tried.len())
            .fold(0, |best, place| if caught(place) > caught(best) { place } else { best });
        let most = tried.first().map_or(0, |(peaks, _)| most(peaks.clients()));
        Ok(Self { tried, chosen, most })
    }

    /// The peaks under the chosen half-life.
    pub fn peaks(&self) -> &Peaks {
        &self.tried[self.chosen].0
    }

    /// The gap below the clients that stand out; `None` where none does.
    pub fn gap(&self) -> Option<Gap> {
        self.tried[self.chosen].1
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(above(&[300.0, 70.0, 9.0], 9), Some(3), "abusers differ among themselves");
        assert_eq!(above(&[20.0, 2.4, 1.0], 9), Some(1), "less than five times the median");
        assert_eq!(above(&[9.0, 6.0, 4.1, 2.8, 1.5, 1.0], 9), None, "no gap is wide");
        assert_eq!(above(&[0.9], 9), None, "nobody has sent much");
        assert_eq!(Gap::parting(&[50.0, 0.9, 0.0], 0.1, 9).map(|gap| gap.clients), Some(1));
        assert_eq!(Gap::parting(&[50.0], 0.1, 9), None, "one client has no neighbour");
        assert_eq!(Gap::parting(&[], 0.1, 9), None);
    }
}
