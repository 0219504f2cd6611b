//! Holds all requests of a log, to put them in the order of their times; those with equal times keep the order
//! of their lines.

use std::io;

use earrrl::Cost;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::batch::{LoggedRequest, TOGETHER};

/// The most requests that can be held, which take 4 GiB. The bound is needed since a small
/// compressed file can contain any number of requests.
const MOST: usize = 1 << 28;

/// Requests that are held until all have been read, so that they can be sorted by time. Each stores
/// its cost as a small number.
///
/// ```
/// use earrrl::Cost;
/// use earrrl_logs::reading::{HeldBack, LoggedRequest};
///
/// let at = |time| LoggedRequest { time, client: 0, cost: Cost::ONE };
/// let mut held = HeldBack::default();
/// held.extend(&[at(20), at(10)])?;
/// held.sort();
/// assert_eq!(held.requests().map(|request| request.time).collect::<Vec<_>>(), [10, 20]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct HeldBack {
    all: Vec<OrderedRequest>,
    /// The different costs, and the place of each.
    costs: Vec<Cost>,
    numbers: HashMap<Cost, u32, RandomState>,
}

impl HeldBack {
    /// Adds a request, which will come after all earlier ones with the same time.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl_logs::reading::{HeldBack, LoggedRequest};
    /// let at = |time| LoggedRequest { time, client: 0, cost: Cost::ONE };
    /// let mut held = HeldBack::default();
    /// held.push(at(20))?;
    /// held.sort();
    /// assert_eq!(held.requests().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::OutOfMemory`] if too many requests are held.
    #[inline]
    pub fn push(&mut self, LoggedRequest { time, client, cost }: LoggedRequest) -> io::Result<()> {
        if self.all.len() >= MOST {
            return Err(too_many());
        }
        let cost = match self.costs.last() {
            // Fast path: in most logs all requests have the same cost.
            Some(&last) if last == cost => self.costs.len() as u32 - 1,
            _ => *self.numbers.entry(cost).or_insert_with(|| {
                self.costs.push(cost);
                self.costs.len() as u32 - 1
            }),
        };
        self.all.push(OrderedRequest { time, client, cost });
        Ok(())
    }

    /// Adds several requests one after the other, as [`HeldBack::push`] does.
    ///
    /// # Errors
    /// Returns the errors of [`HeldBack::push`].
    pub fn extend(&mut self, requests: &[LoggedRequest]) -> io::Result<()> {
        requests.iter().try_for_each(|&request| self.push(request))
    }

    /// Returns the word for the unit of the summed costs: `requests` if each request costs 1.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl_logs::reading::{HeldBack, LoggedRequest};
    /// let at = |time| LoggedRequest { time, client: 0, cost: Cost::ONE };
    /// let mut held = HeldBack::default();
    /// held.push(at(20))?;
    /// assert_eq!(held.unit(), "requests");
    /// held.push(LoggedRequest { cost: Cost::from_units(5), ..at(30) })?;
    /// assert_eq!(held.unit(), "cost");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unit(&self) -> &'static str {
        if self.costs.iter().all(|&cost| cost == Cost::ONE) {
            "requests"
        } else {
            "cost"
        }
    }

    /// Sorts the requests by time. This must be called before [`HeldBack::requests`].
    pub fn sort(&mut self) {
        sort_by_time(&mut self.all, |request| request.time);
    }

    /// Passes the requests to `take` in the order of their times, in slices of at most 64.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl_logs::reading::{HeldBack, LoggedRequest};
    /// let at = |time| LoggedRequest { time, client: 0, cost: Cost::ONE };
    /// let mut held = HeldBack::default();
    /// held.extend(&[at(10), at(20)])?;
    /// held.sort();
    /// held.each(|requests| {
    ///     assert_eq!(requests.len(), 2);
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the first error that `take` returns.
    pub fn each<E>(
        &self,
        mut take: impl FnMut(&[LoggedRequest]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.all.chunks(TOGETHER).try_for_each(|some| {
            let some: Vec<LoggedRequest> = some.iter().map(|one| self.logged(one)).collect();
            take(&some)
        })
    }

    /// Returns the requests in the order of their times.
    pub fn requests(&self) -> impl Iterator<Item = LoggedRequest> {
        self.all.iter().map(|request| self.logged(request))
    }

    fn logged(&self, request: &OrderedRequest) -> LoggedRequest {
        LoggedRequest {
            time: request.time,
            client: request.client,
            cost: self.costs[request.cost as usize],
        }
    }
}

/// Sorts requests by their times; those with equal times keep their order.
pub(crate) fn sort_by_time<T>(all: &mut [T], time: impl Fn(&T) -> u64) {
    // Most logs are nearly in order: the second round sorts what lies across the ends of the first.
    for start in [0, RUN / 2] {
        let rest = all.get_mut(start..).unwrap_or_default();
        rest.chunks_mut(RUN).for_each(|run| run.sort_by_key(&time));
    }
    if !all.is_sorted_by_key(&time) {
        all.sort_by_key(time);
    }
}

#[cold]
pub(crate) fn too_many() -> io::Error {
    let problem = format!(
        "more than {MOST} requests to put in order; `replay --assume-sorted` holds none of them"
    );
    io::Error::new(io::ErrorKind::OutOfMemory, problem)
}

/// The number of requests that are sorted together, which takes temporary memory of half as many.
const RUN: usize = 1 << 20;

/// A request in 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OrderedRequest {
    /// The time of the request, in nanoseconds since the epoch.
    time: u64,
    /// The number of the client in the table of clients.
    client: u32,
    /// The index of the cost in the list of different costs.
    cost: u32,
}

#[cfg(test)]
mod order_tests {
    use super::*;

    #[test]
    fn an_event_is_small() {
        assert_eq!(size_of::<OrderedRequest>(), 16);
    }

    #[test]
    fn as_a_stable_sort_of_all() {
        // Times overlap across the requests that are sorted together, and repeat.
        let mut events = Vec::new();
        let mut random = 1u64;
        for client in 0..2 * RUN as u32 + 1000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            events.push(LoggedRequest {
                time: u64::from(client) / 5 + (random >> 44),
                client,
                cost: Cost::ONE,
            });
        }
        let mut held = HeldBack::default();
        held.extend(&events).unwrap();
        held.sort();
        events.sort_by_key(|event| event.time);
        let pairs = || events.iter().map(|event| (event.time, event.client));
        for _ in 0..2 {
            let found = held.requests().map(|event| (event.time, event.client));
            assert!(found.eq(pairs()));
        }
    }

    #[test]
    fn nothing() {
        assert!(HeldBack::default().requests().next().is_none());
    }
}
