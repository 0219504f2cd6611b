//! Holds all requests of a log, to put them in the order of their times.

use std::io;

use earrrl::Cost;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::order::{Ordered, OrderedRequest};
use super::request::{LoggedRequest, TOGETHER};

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
    events: Ordered,
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
        if self.events.len() >= MOST {
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
        self.events.push(OrderedRequest { time, client, cost });
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
        self.events.sort();
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
        let mut together = Vec::with_capacity(TOGETHER);
        for request in self.requests() {
            together.push(request);
            if together.len() == TOGETHER {
                take(&together)?;
                together.clear();
            }
        }
        take(&together)
    }

    /// Returns the requests in the order of their times.
    pub fn requests(&self) -> impl Iterator<Item = LoggedRequest> {
        self.events.iter().map(|event| LoggedRequest {
            time: event.time,
            client: event.client,
            cost: self.costs[event.cost as usize],
        })
    }
}

#[cold]
fn too_many() -> io::Error {
    let problem = format!(
        "more than {MOST} requests to put in order; `replay --assume-sorted` holds none of them"
    );
    io::Error::new(io::ErrorKind::OutOfMemory, problem)
}
