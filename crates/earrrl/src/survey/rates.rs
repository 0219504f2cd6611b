//! The distribution of clients' rates: a histogram on a logarithmic scale, in fixed memory.

use std::vec::Vec;

/// The number of buckets in which a rate doubles. Neighbouring edges are 4.4 % apart.
const PER_OCTAVE: i32 = 16;
/// The lowest edge is 2^-LOWEST requests a second, one in 35,000 years; lower rates count there.
const LOWEST: i32 = 40;
const OCTAVES: i32 = 80;
const BUCKETS: usize = (OCTAVES * PER_OCTAVE) as usize;

/// The distribution of the rates of a rule's clients.
///
/// A rate is the usage times the limit: the measured rate, or for buckets, which measure none, the
/// used share of the burst times the refill.
///
/// ```
/// use earrrl::internal::Rates;
///
/// let mut rates = Rates::default();
/// for rate in [0.5, 1.0, 2.0, 100.0] {
///     rates.add(rate);
/// }
/// let above = rates.above(50.0);
/// assert_eq!(above.clients, 1);
/// assert!(above.share > 0.96); // of all requests
/// ```
#[derive(Clone)]
pub struct Rates {
    clients: u64,
    total: f64,
    buckets: Vec<(u64, f64)>,
}

/// A bucket of the histogram that is not empty.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RateBucket {
    /// The least rate that counts in this bucket.
    pub from: f64,
    /// The rate at which the next bucket begins.
    pub to: f64,
    /// The number of clients.
    pub clients: u64,
    /// The sum of the clients' rates.
    pub rate: f64,
}

/// The clients above a rate, and their share of all requests.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Above {
    /// The rate: the edge of a bucket, at most 4.4 % below the one that was asked for.
    pub rate: f64,
    /// The number of clients above it.
    pub clients: u64,
    /// Their share of the sum of all rates, from 0 to 1.
    pub share: f64,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            clients: 0,
            total: 0.0,
            buckets: std::vec![(0, 0.0); BUCKETS],
        }
    }
}

impl Rates {
    /// Counts a client.
    ///
    /// ```
    /// # use earrrl::internal::Rates;
    /// let mut rates = Rates::default();
    /// rates.add(2.5);
    /// assert_eq!(rates.clients(), 1);
    /// ```
    pub fn add(&mut self, rate: f64) {
        let rate = rate.clamp(0.0, f64::MAX.sqrt());
        self.clients += 1;
        self.total += rate;
        let (clients, sum) = &mut self.buckets[bucket_of(rate)];
        *clients += 1;
        *sum += rate;
    }

    /// Adds the clients of another distribution.
    ///
    /// ```
    /// # use earrrl::internal::Rates;
    /// let (mut here, mut there) = (Rates::default(), Rates::default());
    /// here.add(1.0);
    /// there.add(3.0);
    /// here.merge(&there);
    /// assert_eq!((here.clients(), here.total()), (2, 4.0));
    /// ```
    pub fn merge(&mut self, other: &Self) {
        self.clients += other.clients;
        self.total += other.total;
        for ((clients, sum), (more, rate)) in self.buckets.iter_mut().zip(&other.buckets) {
            *clients += more;
            *sum += rate;
        }
    }

    /// Returns the number of clients.
    #[must_use]
    pub fn clients(&self) -> u64 {
        self.clients
    }

    /// Returns the sum of all clients' rates.
    ///
    /// ```
    /// # use earrrl::internal::Rates;
    /// let mut rates = Rates::default();
    /// rates.add(1.0);
    /// rates.add(2.0);
    /// assert_eq!(rates.total(), 3.0);
    /// ```
    #[must_use]
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Returns the buckets that are not empty, the lowest rate first.
    ///
    /// ```
    /// # use earrrl::internal::Rates;
    /// let mut rates = Rates::default();
    /// rates.add(5.0);
    /// assert!(rates.buckets().all(|bucket| bucket.from <= 5.0 && 5.0 < bucket.to));
    /// ```
    pub fn buckets(&self) -> impl Iterator<Item = RateBucket> + '_ {
        let each = self
            .buckets
            .iter()
            .enumerate()
            .filter(|(_, (clients, _))| *clients > 0);
        each.map(|(nth, &(clients, rate))| RateBucket {
            from: edge(nth),
            to: edge(nth + 1),
            clients,
            rate,
        })
    }

    /// Returns the number of clients at or above `rate`, rounded down to the edge of a bucket, and
    /// their share of all requests.
    ///
    /// ```
    /// # use earrrl::internal::Rates;
    /// let mut rates = Rates::default();
    /// rates.add(1.0);
    /// rates.add(99.0);
    /// assert_eq!(rates.above(10.0).clients, 1);
    /// ```
    #[must_use]
    pub fn above(&self, rate: f64) -> Above {
        let first = bucket_of(rate);
        let buckets = self.buckets[first..].iter();
        let (clients, sum) = buckets.fold((0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
        let share = if self.total > 0.0 {
            (sum / self.total).min(1.0)
        } else {
            0.0
        };
        Above {
            rate: edge(first),
            clients,
            share,
        }
    }
}

impl core::fmt::Debug for Rates {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Rates")
            .field("clients", &self.clients)
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}

/// Returns the bucket of a rate. The conversion saturates, and a rate that is no number is the
/// lowest.
fn bucket_of(rate: f64) -> usize {
    // An edge is computed with an error of a few ulps and must not fall into the bucket below.
    let place = (rate.log2() + f64::from(LOWEST)) * f64::from(PER_OCTAVE) + 1e-9;
    (place as usize).min(BUCKETS - 1)
}

/// Returns the lower edge of a bucket. The lowest one begins at 0.
fn edge(bucket: usize) -> f64 {
    match bucket {
        0 => 0.0,
        _ => (bucket as f64 / f64::from(PER_OCTAVE) - f64::from(LOWEST)).exp2(),
    }
}
