//! Requests that are held until all have been read.

use std::io;

use earrrl::Cost;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::order::{Ordered, OrderedRequest};
use super::request::{LoggedRequest, TOGETHER};

/// The most requests that are held, 4 GiB of them: a small compressed file can hold any number.
const MOST: usize = 1 << 28;

/// Requests held back to be put in order, their costs under small numbers.
#[derive(Default)]
pub struct HeldBack {
    events: Ordered,
    costs: Vec<Cost>,
    numbers: HashMap<Cost, u32, RandomState>,
}

impl HeldBack {
    /// Holds a request behind all others of its time.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`] where there are too many.
    #[inline]
    pub fn push(&mut self, LoggedRequest { time, client, cost }: LoggedRequest) -> io::Result<()> {
        if self.events.len() >= MOST {
            return Err(too_many());
        }
        let cost = match self.costs.last() {
            // Most logs have one cost only.
            Some(&last) if last == cost => self.costs.len() as u32 - 1,
            _ => *self.numbers.entry(cost).or_insert_with(|| {
                self.costs.push(cost);
                self.costs.len() as u32 - 1
            }),
        };
        self.events.push(OrderedRequest { time, client, cost });
        Ok(())
    }

    /// Holds requests behind all others of their times.
    ///
    /// # Errors
    /// Returns the errors of [`HeldBack::push`].
    pub fn extend(&mut self, requests: &[LoggedRequest]) -> io::Result<()> {
        requests.iter().try_for_each(|&request| self.push(request))
    }

    /// Returns the unit of the sum of all costs: requests if each costs 1.
    pub fn unit(&self) -> &'static str {
        if self.costs.iter().all(|&cost| cost == Cost::ONE) { "requests" } else { "cost" }
    }

    /// Puts the requests in order; to be called before [`HeldBack::requests`].
    pub fn sort(&mut self) {
        self.events.sort();
    }

    /// Hands the requests to `take`, in order, many at a time.
    ///
    /// # Errors
    /// Returns the error of `take`.
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

    /// The requests in order.
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
