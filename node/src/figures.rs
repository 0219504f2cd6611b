//! The figures of a decision, in an array that JavaScript passes: making an object here would take
//! longer than the decision.

use earrrl::{Decision, Outcome, Wait};
use earrrl_tower::headers::{Available, retry_after};

/// The array that JavaScript passes. Its thread runs this code, so it does not use the array meanwhile.
pub(crate) type Figures<'a> = &'a mut [f64];

/// The number of figures, whose order is that of `lib/index.js`.
pub(crate) const FIGURES: usize = 12;

/// Writes the figures of a decision. Waits are in milliseconds; infinity is never, NaN is none.
#[inline]
pub(crate) fn write(decision: &Decision, available: Option<Available>, to: Figures<'_>) {
    let Some(to) = to.first_chunk_mut::<FIGURES>() else { return };
    let retry_after_seconds = retry_after(decision)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .unwrap_or(f64::NAN);
    *to = [
        f64::from(u8::from(decision.allowed)),
        outcome(decision.outcome),
        decision.remaining as f64,
        wait(decision.retry_after),
        decision.reset_after.as_secs_f64() * 1e3,
        decision.rate.unwrap_or(f64::NAN),
        decision.limit,
        decision.delay.as_secs_f64() * 1e3,
        decision.at.get() as f64,
        available.map_or(f64::NAN, |available| available.units as f64),
        available.and_then(|available| available.seconds).map_or(f64::NAN, |wait| wait as f64),
        retry_after_seconds,
    ];
}

/// Returns an outcome's place in the list of `lib/index.js`.
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
    wait.duration().map_or(f64::INFINITY, |wait| wait.as_secs_f64() * 1e3)
}
