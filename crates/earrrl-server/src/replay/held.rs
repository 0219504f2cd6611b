//! Requests held back until all are there.

use std::io;

use earrrl::Cost;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::order::{Event, Ordered};
use super::reader::Request;

/// The most requests that are held, 4 GiB of them: a small compressed file can hold any number.
const MOST: usize = 1 << 28;

/// Requests held back to be put in order, their costs under small numbers.
#[derive(Default)]
pub(crate) struct Held {
    events: Ordered,
    costs: Vec<Cost>,
    numbers: HashMap<Cost, u32, RandomState>,
}

impl Held {
    /// Holds a request behind all others of its time.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`] where there are too many.
    #[inline]
    pub(crate) fn push(&mut self, Request { time, client, cost }: Request) -> io::Result<()> {
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
        self.events.push(Event { time, client, cost });
        Ok(())
    }

    /// What the costs add up to: requests, where each costs 1.
    pub(crate) fn unit(&self) -> &'static str {
        if self.costs.iter().all(|&cost| cost == Cost::ONE) { "requests" } else { "cost" }
    }

    /// Puts the requests in order; to be called before [`Held::requests`].
    pub(crate) fn sort(&mut self) {
        self.events.sort();
    }

    /// The requests in order.
    pub(crate) fn requests(&self) -> impl Iterator<Item = Request> {
        self.events.iter().map(|event| Request {
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
