//! Sorts requests by time; those with equal times keep the order of their lines.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// The number of requests in a run, which is sorted by itself. Sorting takes temporary memory of
/// half a run, so short runs need less.
const RUN: usize = 1 << 20;

/// A request in 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OrderedRequest {
    /// The time of the request, in nanoseconds since the epoch.
    pub time: u64,
    /// The number of the client in the table of clients.
    pub client: u32,
    /// The index of the cost in the list of different costs.
    pub cost: u32,
}

/// Requests in runs, each sorted by itself; iterating merges the runs.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    runs: Vec<Vec<OrderedRequest>>,
    /// The newest run, which is not sorted yet.
    open: Vec<OrderedRequest>,
}

impl Ordered {
    /// Adds a request, which will come after all earlier ones with the same time.
    pub(super) fn push(&mut self, event: OrderedRequest) {
        if self.open.len() == RUN {
            self.sort();
            self.open.reserve_exact(RUN);
        }
        self.open.push(event);
    }

    /// Returns the number of requests.
    pub(super) fn len(&self) -> usize {
        // Every run but the newest has exactly `RUN` requests.
        self.runs.len() * RUN + self.open.len()
    }

    /// Sorts the newest run. This must be called before [`Ordered::iter`].
    pub(super) fn sort(&mut self) {
        if self.open.is_empty() {
            return;
        }
        // The stable sort of the standard library is fast on requests that are nearly in order.
        self.open.sort_by_key(|event| event.time);
        self.runs.push(std::mem::take(&mut self.open));
    }

    /// Returns the requests in the order of their times, by merging the runs.
    pub(super) fn iter(&self) -> impl Iterator<Item = OrderedRequest> {
        let head = |(run, events): (usize, &Vec<OrderedRequest>)| Reverse((events[0].time, run));
        let mut heads: BinaryHeap<_> = self.runs.iter().enumerate().map(head).collect();
        let mut next = vec![0; self.runs.len()];
        std::iter::from_fn(move || {
            let mut head = heads.peek_mut()?;
            let Reverse((_, run)) = *head;
            let event = self.runs[run][next[run]];
            next[run] += 1;
            match self.runs[run].get(next[run]) {
                Some(following) => head.0.0 = following.time,
                None => {
                    PeekMut::pop(head);
                }
            }
            Some(event)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_small() {
        assert_eq!(size_of::<OrderedRequest>(), 16);
    }

    #[test]
    fn as_a_stable_sort_of_all() {
        // The test data has three runs whose times overlap and repeat.
        let mut events = Vec::new();
        let mut random = 1u64;
        for client in 0..2 * RUN as u32 + 1000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            events.push(OrderedRequest {
                time: u64::from(client) / 5 + (random >> 44),
                client,
                cost: 0,
            });
        }
        let mut ordered = Ordered::default();
        events.iter().for_each(|&event| ordered.push(event));
        events.sort_by_key(|event| event.time);
        assert_eq!(ordered.len(), events.len());
        ordered.sort();
        assert!(ordered.iter().eq(events.iter().copied()));
        assert!(ordered.iter().eq(events));
    }

    #[test]
    fn nothing() {
        assert_eq!(Ordered::default().iter().next(), None);
    }
}
