//! Arguments from JavaScript: keys, costs and rules.

use std::fmt::Display;
use std::time::Duration;

use earrrl::{Action, Cost, Rule};
use napi::bindgen_prelude::{BufferSlice, Either};
use napi::{Error, Status};
use napi_derive::napi;

/// A key: a text or bytes. A text and its UTF-8 are the same key.
pub(crate) type Key<'a> = Either<String, BufferSlice<'a>>;

/// Returns the bytes of a key.
#[inline]
pub(crate) fn bytes<'a>(key: &'a Key<'_>) -> &'a [u8] {
    match key {
        Either::A(text) => text.as_bytes(),
        Either::B(bytes) => bytes,
    }
}

/// Returns a cost, 1 if there is none.
///
/// # Errors
/// Returns an error that shows what would be right.
#[inline]
pub(crate) fn cost(cost: Option<f64>) -> napi::Result<Cost> {
    match cost {
        None => Ok(Cost::ONE),
        Some(cost) => Cost::try_from(cost).map_err(|error| invalid(error.of("cost"))),
    }
}

/// The options of a limiter.
#[napi(object)]
pub struct LimiterOptions {
    /// The path of the file that processes share.
    pub path: Option<String>,
    /// The greatest number of clients.
    pub capacity: Option<f64>,
    /// The treatment of requests over the limit.
    pub action: Option<String>,
    /// The longest delay in milliseconds, for the action `delay`.
    pub max_delay: Option<f64>,
    /// The greatest cost of a request.
    pub max_cost: Option<f64>,
    /// The name that headers show.
    pub name: Option<String>,
}

/// Returns the rule of a text with its options.
///
/// # Errors
/// Returns an error with the library's message.
pub(crate) fn rule(text: &str, options: &LimiterOptions) -> napi::Result<Rule> {
    let mut rule: Rule = text.parse().map_err(invalid)?;
    if let Some(max_cost) = options.max_cost {
        rule = rule.with_max_cost(cost(Some(max_cost))?).map_err(invalid)?;
    }
    let action = match options.action.as_deref() {
        None | Some("deny") => Action::Deny,
        Some("shadow-ban") => Action::ShadowBan,
        Some("quarantine") => Action::Quarantine,
        Some("observe") => Action::Observe,
        Some("delay") => Action::Delay { max: delay(options.max_delay)? },
        Some(other) => {
            let expected = "deny, shadow-ban, quarantine, delay or observe";
            return Err(invalid(format!("action: {other:?} is not {expected}")));
        }
    };
    rule.with_action(action).map_err(invalid)
}

fn delay(millis: Option<f64>) -> napi::Result<Duration> {
    let longest = Duration::from_secs(86_400);
    let delay = millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1e3).ok());
    delay.filter(|delay| *delay <= longest).ok_or_else(|| {
        invalid("maxDelay: the action delay needs the longest delay, 0 to 86400000 milliseconds")
    })
}

/// Returns the greatest number of clients, 100,000 if none is given.
///
/// # Errors
/// Returns an error for a number that is not whole, or not positive.
pub(crate) fn capacity(clients: Option<f64>) -> napi::Result<usize> {
    let clients = clients.unwrap_or(100_000.0);
    if clients >= 1.0 && clients <= f64::from(u32::MAX) && clients.fract() == 0.0 {
        return Ok(clients as usize);
    }
    Err(invalid(format!("capacity: {clients} is not a whole number from 1 to {}", u32::MAX)))
}

/// Returns the exception for a wrong argument.
pub(crate) fn invalid(error: impl Display) -> Error {
    Error::new(Status::InvalidArg, error.to_string())
}
