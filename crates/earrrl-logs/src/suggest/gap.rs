//! Where the clients that stand out are parted from all others.

use std::time::Duration;

use earrrl::RuleError;

use super::Peaks;
use crate::reading::LoggedRequest;

/// Half-lives that are tried unless one is given.
pub const HALF_LIVES: [u64; 4] = [10, 60, 600, 3600];

/// How many times its neighbour's peak a client's must be for it to stand out.
const WIDE: f64 = 3.0;

/// What is a gap below the widest one, if it is also half as wide as that by the logarithm: attackers
/// differ among themselves, though less than from everybody else.
const LESS_WIDE: f64 = 2.0;

/// What a client must have sent in a burst, or its like in a stream, to be worth a limit.
const FEW: f64 = 10.0;

/// How much wider a longer half-life's gap must be to be worth the longer memory.
const CLEARLY: f64 = 1.05;

/// The distance between two clients whose peaks are neighbours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gap {
    /// How many clients are above.
    pub clients: usize,
    /// The least peak above, a second.
    pub above: f64,
    /// The greatest peak below; of clients with one request only, that request's.
    pub below: f64,
    /// How many times its neighbour's peak one is, at the widest of all gaps.
    widest: f64,
}

impl Gap {
    /// The gap that parts at most so many of these peaks, the greatest first, from all others: the
    /// lowest that is wide enough, else the widest. None where nobody has sent much.
    pub fn parting(descending: &[f64], of_one_request: f64, most: usize) -> Option<Self> {
        let pairs = descending.iter().zip(descending.get(1..)?).take(most);
        let gaps = pairs.zip(1..).map(|((&above, &below), clients)| {
            let below = below.max(of_one_request);
            Self { clients, above, below, widest: above / below }
        });
        let gaps: Vec<Self> = gaps.take_while(|gap| gap.above >= FEW * of_one_request).collect();
        let wider = |a: Self, b: &Self| if b.widest > a.widest { *b } else { a };
        let widest = gaps.iter().skip(1).fold(*gaps.first()?, wider);
        let wide = LESS_WIDE.max(widest.ratio().sqrt());
        let lowest = gaps.iter().rev().find(|gap| gap.ratio() >= wide);
        let gap = lowest.filter(|_| widest.is_wide()).copied().unwrap_or(widest);
        Some(Self { widest: widest.widest, ..gap })
    }

    /// A gap with one client above.
    #[cfg(test)]
    pub(super) fn between(above: f64, below: f64) -> Self {
        Self { clients: 1, above, below, widest: above / below }
    }

    /// How many times the peak below the one above is.
    pub fn ratio(&self) -> f64 {
        self.above / self.below
    }

    /// Whether those above stand out.
    pub fn is_wide(&self) -> bool {
        self.widest >= WIDE
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
    /// The one whose gap is the widest.
    pub chosen: usize,
}

impl Sweep {
    /// Tries the half-lives on requests in order; at most a share of the clients may stand out.
    ///
    /// # Errors
    /// A half-life that no rule can have.
    pub fn new<I: Iterator<Item = LoggedRequest>>(
        half_lives: &[Duration],
        most: impl Fn(usize) -> usize,
        requests: impl Fn() -> I,
    ) -> Result<Self, RuleError> {
        let mut tried = Vec::with_capacity(half_lives.len());
        for &half_life in half_lives {
            let peaks = Peaks::of(half_life, requests())?;
            let descending = peaks.descending();
            let most = most(descending.len());
            tried.push((Gap::parting(&descending, peaks.of_one_request(), most), peaks));
        }
        let ratio = |place: usize, tried: &[(Option<Gap>, Peaks)]| {
            tried[place].0.map_or(0.0, |gap| gap.ratio())
        };
        let chosen = (1..tried.len()).fold(0, |best, place| {
            if ratio(place, &tried) > ratio(best, &tried) * CLEARLY { place } else { best }
        });
        Ok(Self { tried: tried.into_iter().map(|(gap, peaks)| (peaks, gap)).collect(), chosen })
    }

    /// The peaks under the chosen half-life.
    pub fn peaks(&self) -> &Peaks {
        &self.tried[self.chosen].0
    }

    /// The gap below the clients that stand out; `None` where none does.
    pub fn gap(&self) -> Option<Gap> {
        self.tried[self.chosen].1.filter(Gap::is_wide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_clients_are_parted() {
        let widest = |peaks: &[f64], most| Gap::parting(peaks, 0.1, most).map(|gap| gap.clients);
        assert_eq!(widest(&[268.0, 75.0, 28.0, 24.0, 18.0, 16.0, 6.0, 5.0, 4.0], 9), Some(6));
        assert_eq!(widest(&[300.0, 7.0, 2.0, 1.0], 9), Some(1), "one is far above all others");
        assert_eq!(widest(&[20.0, 8.0, 4.1, 2.0], 9), Some(1), "no gap is wide");
        assert_eq!(widest(&[50.0, 40.0, 0.9, 0.5], 9), Some(2));
        assert_eq!(widest(&[50.0, 40.0, 0.9, 0.5], 1), Some(1));
        assert_eq!(widest(&[50.0, 40.0, 0.9, 0.5], 0), None);
        // Clients with one request are no further away than those with two; nine are too few.
        assert_eq!(widest(&[50.0, 0.9, 0.0], 9), Some(1));
        assert_eq!(widest(&[0.9, 0.0], 9), None, "nobody has sent much");
        assert_eq!(widest(&[50.0], 9), None, "one client has no neighbour");
        assert_eq!(widest(&[], 9), None);
    }
}
