//! Arguments from JavaScript: keys, costs and rules.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use earrrl::{Action, Cost, MemoryEngine, Nanos, Rule};
use napi::bindgen_prelude::{BigInt, BufferSlice, Either, FromNapiValue, TypeName};
use napi::{Env, Error, Status, ValueType, sys};
use napi_derive::napi;

/// The size of the buffer for short texts, which need no allocation.
const SHORT: usize = 64;
/// The most bytes of a character, and the one that ends a text of JavaScript.
const CHARACTER: usize = 5;

/// A key: a text or bytes. A text and its UTF-8 are the same key.
pub enum Key<'a> {
    Short([u8; SHORT], usize),
    Long(String),
    Bytes(BufferSlice<'a>),
}

/// Returns the bytes of a key.
#[inline]
pub(crate) fn bytes<'a>(key: &'a Key<'_>) -> &'a [u8] {
    match key {
        Key::Short(text, length) => text.get(..*length).unwrap_or_default(),
        Key::Long(text) => text.as_bytes(),
        Key::Bytes(bytes) => bytes,
    }
}

impl TypeName for Key<'_> {
    fn type_name() -> &'static str {
        "Key"
    }

    fn value_type() -> ValueType {
        ValueType::Unknown
    }
}

impl FromNapiValue for Key<'_> {
    #[expect(unsafe_code, reason = "the trait demands it")]
    #[inline]
    unsafe fn from_napi_value(env: sys::napi_env, value: sys::napi_value) -> napi::Result<Self> {
        let (mut text, mut length) = ([0; SHORT], 0);
        let start = text.as_mut_ptr().cast();
        // SAFETY: the caller passes a value of this environment; the text has room for `SHORT` bytes.
        let status =
            unsafe { sys::napi_get_value_string_utf8(env, value, start, SHORT, &mut length) };
        if status == sys::Status::napi_ok && length <= SHORT - CHARACTER {
            return Ok(Self::Short(text, length));
        }
        let is_text = status == sys::Status::napi_ok;
        // SAFETY: as above.
        let key = unsafe {
            if is_text {
                String::from_napi_value(env, value).map(Self::Long)
            } else {
                BufferSlice::from_napi_value(env, value).map(Self::Bytes)
            }
        };
        key.map_err(|_| invalid("key: expected a text or a Buffer"))
    }
}

/// The memory of a store, which JavaScript's garbage collector does not see: without its knowledge, limiters that
/// are no longer used would wait for as many as fill the heap.
pub(crate) struct StoreMemory(i64);

impl StoreMemory {
    /// The bytes of a client, about those that the library reserves.
    const CLIENT: i64 = 24;

    /// Reports the memory of the clients of some rules to the garbage collector.
    pub(crate) fn reserve(env: &Env, capacity: usize, rules: usize) -> napi::Result<Self> {
        let bytes = (capacity as i64).saturating_mul(rules as i64).saturating_mul(Self::CLIENT);
        env.adjust_external_memory(bytes)?;
        Ok(Self(bytes))
    }

    /// Reports that the memory is free.
    pub(crate) fn free(&self, env: &Env) -> napi::Result<()> {
        env.adjust_external_memory(-self.0).map(drop)
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
    let name = options.action.as_deref().unwrap_or("deny");
    rule.with_action(action(name, options.max_delay)?).map_err(invalid)
}

fn action(name: &str, max_delay: Option<f64>) -> napi::Result<Action> {
    let action = match name {
        "deny" => Action::Deny,
        "shadow-ban" => Action::ShadowBan,
        "quarantine" => Action::Quarantine,
        "observe" => Action::Observe,
        "delay" => return Ok(Action::Delay { max: delay(max_delay)? }),
        _ => {
            let expected = "deny, shadow-ban, quarantine, delay or observe";
            return Err(invalid(format!("action: {name:?} is not {expected}")));
        }
    };
    match max_delay {
        None => Ok(action),
        Some(_) => Err(invalid(format!("maxDelay: the action is {name}; only delay has one"))),
    }
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
    whole("capacity", clients, 1..=u32::MAX).map(|clients| clients as usize)
}

/// Returns an engine, whose rules have files in a directory if there is a path.
///
/// # Errors
/// Returns an error with the library's message.
pub(crate) fn engine(path: Option<String>, capacity: Option<f64>) -> napi::Result<MemoryEngine> {
    let capacity = self::capacity(capacity)?;
    let engine = match path {
        Some(path) => MemoryEngine::with_state_for(capacity, path),
        None => MemoryEngine::new(capacity),
    };
    engine.map_err(invalid)
}

/// Returns the number of clients to report, 10 if none is given.
///
/// # Errors
/// Returns an error for a number that is not whole, or negative.
pub(crate) fn count(clients: Option<f64>) -> napi::Result<usize> {
    whole("count", clients.unwrap_or(10.0), 0..=u32::MAX).map(|clients| clients as usize)
}

/// Returns a whole number of a range.
///
/// # Errors
/// Returns an error for a number that is not whole, or outside of the range.
pub(crate) fn whole(name: &str, number: f64, range: RangeInclusive<u32>) -> napi::Result<u32> {
    let (least, most) = range.into_inner();
    if number >= f64::from(least) && number <= f64::from(most) && number.fract() == 0.0 {
        return Ok(number as u32);
    }
    Err(invalid(format!("{name}: {number} is not a whole number from {least} to {most}")))
}

/// Returns an instant in nanoseconds since the epoch; a number is rounded down to a whole one.
///
/// # Errors
/// Returns an error for an instant before the epoch, or too late for the clock.
pub(crate) fn instant(at: &Either<f64, BigInt>) -> napi::Result<Nanos> {
    let nanos = match at {
        Either::A(at) if (0.0..u64::MAX as f64).contains(at) => Some(*at as u64),
        Either::A(_) => None,
        Either::B(at) => {
            let (is_negative, nanos, is_exact) = at.get_u64();
            (is_exact && !is_negative).then_some(nanos)
        }
    };
    nanos.map(Nanos::new).ok_or_else(|| {
        invalid("at: expected the nanoseconds since the epoch, from 0 to 18446744073709551615")
    })
}

/// Returns the exception for a wrong argument.
pub(crate) fn invalid(error: impl Display) -> Error {
    Error::new(Status::InvalidArg, error.to_string())
}
