//! The figures of a decision, in an array that JavaScript passes once: making an object here, or finding the memory
//! of an array in each call, would take longer than the decision.

use std::cell::RefCell;

use earrrl::{Decision, Mode, Outcome, Wait};
use earrrl_tower::headers::Available;
use napi::bindgen_prelude::Float64Array;

/// An array of `lib/limiter.cjs` or `lib/stores.cjs` into which figures are written, which reads them at once.
pub(crate) struct Figures(RefCell<Float64Array>);

impl Figures {
    pub(crate) fn new(array: Float64Array) -> Self {
        Self(RefCell::new(array))
    }

    /// Writes numbers to the beginning of the array.
    #[inline]
    #[expect(unsafe_code, reason = "the memory belongs to JavaScript")]
    pub(crate) fn set<const N: usize>(&self, figures: [f64; N]) {
        let mut array = self.0.borrow_mut();
        // SAFETY: The files of `lib/` keep their arrays to themselves, so that the memory is neither moved nor used by
        // other threads. This thread holds no other slice of it, and runs no JavaScript before the slice's end.
        let array = unsafe { array.as_mut() };
        if let Some(first) = array.first_chunk_mut() {
            *first = figures;
        }
    }

    /// Writes the figures of a decision, in the order of `lib/limiter.cjs`. Waits are in milliseconds; infinity is
    /// never, NaN is none.
    #[inline]
    pub(crate) fn write(&self, decision: &Decision, available: Option<Available>) {
        let number = |figure: Option<u64>| figure.map_or(f64::NAN, |figure| figure as f64);
        self.set([
            f64::from(u8::from(decision.allowed)),
            outcome(decision.outcome),
            decision.remaining as f64,
            wait(decision.retry_after),
            wait(decision.earliest()),
            decision.reset_after.as_secs_f64() * 1e3,
            decision.rate.unwrap_or(f64::NAN),
            decision.limit,
            decision.delay.as_secs_f64() * 1e3,
            decision.at.get() as f64,
            number(available.map(|available| available.units)),
            number(available.and_then(|available| available.seconds)),
        ]);
    }
}

/// Returns the mode of a number of `lib/limiter.cjs`.
#[inline]
pub(crate) fn mode(number: u32) -> Mode {
    match number {
        0 => Mode::Check,
        1 => Mode::Peek,
        _ => Mode::Charge,
    }
}

/// Returns the header `RateLimit` of a rule, for the available units and the seconds that they must last.
pub(crate) fn limit_header(name: &str, units: f64, seconds: f64) -> Option<String> {
    let seconds = (!seconds.is_nan()).then_some(seconds as u64);
    let available = Available {
        units: units as u64,
        seconds,
    };
    earrrl_bindings::limit_header(name, available)
}

/// Returns an outcome's place in the list of `lib/limiter.cjs`.
fn outcome(outcome: Outcome) -> f64 {
    match outcome {
        Outcome::Observe => 1.0,
        Outcome::Quarantine => 2.0,
        Outcome::Delay => 3.0,
        Outcome::ShadowBan => 4.0,
        Outcome::Deny => 5.0,
        _ => 0.0,
    }
}

fn wait(wait: Wait) -> f64 {
    wait.duration()
        .map_or(f64::INFINITY, |wait| wait.as_secs_f64() * 1e3)
}
