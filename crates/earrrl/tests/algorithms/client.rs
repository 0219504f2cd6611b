//! One client of one limit, for tests of sequences.

use std::time::Duration;

use earrrl::algorithm::State;
use earrrl::internal::Figures;
use earrrl::{Cost, Decision, Limit, Mode, Nanos, Rule};

/// A limit, and the state of one client under it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) limit: Limit,
    pub(crate) state: Option<State>,
}

impl Client {
    pub(crate) fn new(limit: Limit) -> Self {
        Self { limit, state: None }
    }

    pub(crate) fn of(rule: &str) -> Self {
        let rule: Rule = rule
            .parse()
            .unwrap_or_else(|error| panic!("`{rule}`: {error}"));
        Self::new(*rule.limit())
    }

    /// Sends a request, which is stored as the policy requires.
    pub(crate) fn ask(&mut self, now: Nanos, cost: Cost) -> Decision {
        let (state, decision) = self.limit.decide(self.state.take(), now, cost, Mode::Check);
        self.state = state;
        decision
    }

    /// Returns the answer that [`Client::ask`] would return.
    pub(crate) fn peek(&self, now: Nanos, cost: Cost) -> Decision {
        self.limit
            .decide(self.state.clone(), now, cost, Mode::Peek)
            .1
    }

    /// Returns the figures of a peek, even if it would be denied.
    pub(crate) fn report(&self, now: Nanos, cost: Cost) -> Figures {
        self.limit.step(self.state.clone(), now, cost, Mode::Peek).2
    }

    /// Sends a request that is stored even if it is over the limit.
    pub(crate) fn charge(&mut self, now: Nanos, cost: Cost) {
        self.state = self
            .limit
            .step(self.state.take(), now, cost, Mode::Charge)
            .0;
    }

    pub(crate) fn refund(&mut self, now: Nanos, charged_at: Nanos, cost: Cost) {
        self.state = self.limit.refund(self.state.take(), now, charged_at, cost);
    }
}

/// Returns the instant that is `secs` seconds after the epoch, rounded to the nanosecond.
pub(crate) fn at(secs: f64) -> Nanos {
    Nanos::new((secs * 1e9).round() as u64)
}

pub(crate) fn units(units: u64) -> Cost {
    Cost::from_units(units)
}

pub(crate) fn cost(text: &str) -> Cost {
    text.parse()
        .unwrap_or_else(|error| panic!("`{text}`: {error}"))
}

/// Returns the instant that is `nanos` nanoseconds earlier.
pub(crate) fn before(now: Nanos, nanos: u64) -> Nanos {
    Nanos::new(now.get().saturating_sub(nanos))
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns true if two numbers agree to a relative error.
pub(crate) fn close(a: f64, b: f64, relative: f64) -> bool {
    a == b || (a - b).abs() <= relative * a.abs().max(b.abs())
}

/// Asserts that two numbers agree to 1e-9.
#[track_caller]
pub(crate) fn assert_close(found: f64, expected: f64, what: &str) {
    assert!(
        close(found, expected, 1e-9),
        "{what}: {found:?}, expected {expected:?}"
    );
}

/// Asserts that a wait in seconds is right to 1e-9, and to the nanosecond to which waits are
/// rounded up.
#[track_caller]
pub(crate) fn assert_wait(found: Duration, expected: f64, what: &str) {
    let off = (found.as_secs_f64() - expected).abs();
    assert!(
        off <= 1e-9 * expected + 1.6e-9,
        "{what}: {found:?}, expected {expected:?} s"
    );
}
