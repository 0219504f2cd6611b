//! What a node tells Redis of a client, and what it is told.

use std::time::Duration;

use earrrl::{Cost, Limit, Mode, Nanos, State};

use super::{Client, Counted, Due, Time};
use crate::algorithm;

/// What is told to Redis, and asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// A later call has a higher one.
    pub(crate) place: u64,
    /// The number of what was counted, and that; below every number where there is none.
    pub(crate) number: u64,
    pub(crate) counted: Option<Counted>,
    /// How much must be spare, what is taken then, and what would be, were there enough.
    pub(crate) need: f64,
    pub(crate) take: f64,
    pub(crate) like: f64,
}

/// What Redis answers to it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// With everything that was sent.
    pub(crate) state: Option<State>,
    /// What may be spent until an instant of this node's clock.
    pub(crate) share: f64,
    pub(crate) until: Nanos,
    /// From when on it is to be claimed anew, and until when the state will do to deny by.
    pub(crate) renew: Nanos,
    pub(crate) fresh: Nanos,
    /// How many other nodes know the client.
    pub(crate) others: u32,
    /// How much was missing of what must be spare.
    pub(crate) lacks: f64,
}

impl Client {
    /// What to send: with it, what one more request would take.
    pub(crate) fn call(
        &mut self,
        limit: &Limit,
        cost: Cost,
        time: Time,
        mut number: impl FnMut() -> u64,
    ) -> Call {
        self.called = time.local;
        if self.under_way.is_none() && self.unsent.state.is_some() {
            self.under_way = Some(Box::new((number(), std::mem::take(&mut self.unsent))));
        }
        let left = (self.share - self.spent()).max(0.0) / 2.0;
        // Until the answer is here, no more is spent than is asked for.
        self.share = self.spent() + left;
        let algorithm = algorithm::of(limit);
        let unsent = self.unsent.spent;
        self.liked = unsent + left + self.awaited;
        self.sent = number();
        let sent = self.under_way.as_deref();
        Call {
            place: self.sent,
            number: sent.map_or(0, |sent| sent.0),
            counted: sent.map(|sent| sent.1.clone()),
            need: unsent + if cost.is_zero() { 0.0 } else { algorithm.needs(cost) },
            take: unsent + algorithm.takes(cost),
            like: self.liked,
        }
    }

    /// A request waits for an answer, or no more.
    pub(crate) fn awaits(&mut self, limit: &Limit, cost: Cost, waits: bool) {
        let takes = algorithm::of(limit).takes(cost);
        self.awaited = if waits { self.awaited + takes } else { (self.awaited - takes).max(0.0) };
    }

    /// Takes an answer over; tells whether the client turns out to be over the limit, though it was not by
    /// what was known here.
    pub(crate) fn adopt(&mut self, limit: &Limit, call: &Call, told: Told, time: Time) -> bool {
        let now = self.at(limit, time);
        self.under_way.take_if(|sent| sent.0 <= call.number);
        if self.owes() {
            // What was charged since is for the next exchange.
            self.list(Due::Sometime, time.local);
        }
        if call.place < self.told {
            return false;
        }
        self.told = call.place;
        let later = call.place < self.sent;
        self.share = if later { told.share.min(self.liked) } else { told.share };
        (self.until, self.renew, self.fresh) = (told.until, told.renew, told.fresh);
        (self.others, self.news) = (told.others, true);
        let lacks = told.lacks / algorithm::of(limit).takes(Cost::ONE) / limit.per_second();
        self.lacks = Duration::try_from_secs_f64(lacks).unwrap_or_default();
        let merged = |state: Option<State>, counted: &Counted| match (&state, &counted.state) {
            (Some(_), Some(counted_state)) => {
                state.map(|state| algorithm::of(limit).merged(state, counted_state, counted.sum))
            }
            (None, counted) => counted.clone(),
            (_, None) => state,
        };
        let mut state = told.state;
        if let Some(sent) = &self.under_way {
            state = merged(state, &sent.1);
        }
        self.state = merged(state, &self.unsent);
        let is = self.is_over(limit, now);
        let was = std::mem::replace(&mut self.over, is);
        is && !was && call.counted.is_some()
    }

    fn is_over(&mut self, limit: &Limit, now: Nanos) -> bool {
        !limit.admit(&mut self.state, now, Cost::ONE, Mode::Peek)
    }

    /// What Redis was sent can never arrive; answers whether there was something.
    pub(crate) fn give_up(&mut self) -> bool {
        self.under_way.take().is_some()
    }
}
