//! Requests held back until all are there.

use earrrl::Cost;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::order::{Event, Ordered};
use super::reader::Request;

/// Requests held back to be put in order, their costs under small numbers.
#[derive(Default)]
pub(crate) struct Held {
    events: Ordered,
    costs: Vec<Cost>,
    numbers: HashMap<Cost, u32, RandomState>,
}

impl Held {
    /// Holds a request behind all others of its time.
    pub(crate) fn push(&mut self, Request { time, client, cost }: Request) {
        let cost = match self.costs.last() {
            // Most logs have one cost only.
            Some(&last) if last == cost => self.costs.len() as u32 - 1,
            _ => *self.numbers.entry(cost).or_insert_with(|| {
                self.costs.push(cost);
                self.costs.len() as u32 - 1
            }),
        };
        self.events.push(Event { time, client, cost });
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
