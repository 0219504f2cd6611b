//! Arguments from JavaScript: keys, costs and rules.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use earrrl::{Action, Cost, MemoryEngine, Mode, Nanos, Rule};
use napi::bindgen_prelude::{BigInt, BufferSlice, FromNapiValue, TypeName, Unknown};
use napi::{Env, Error, Status, ValueType, sys};

use crate::value::{self, Options, optional, shown_number, shown_text, wrong};

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
        let mut text = [0; SHORT];
        let mut length = 0;
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
        // SAFETY: as above.
        key.map_err(
            |error| match unsafe { Unknown::from_napi_value(env, value) } {
                Ok(value) => wrong("key", value, "a string or a Buffer"),
                Err(_) => error,
            },
        )
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
        let bytes = (capacity as i64)
            .saturating_mul(rules as i64)
            .saturating_mul(Self::CLIENT);
        env.adjust_external_memory(bytes)?;
        Ok(Self(bytes))
    }

    /// Reports that the memory is free.
    pub(crate) fn free(&self, env: &Env) -> napi::Result<()> {
        env.adjust_external_memory(-self.0).map(drop)
    }
}

/// Returns a cost.
///
/// # Errors
/// Returns an error for a value that is no number, or a number that is no cost.
#[inline]
pub(crate) fn cost(name: &str, cost: Unknown<'_>) -> napi::Result<Cost> {
    let number = f64::from_unknown(cost).map_err(|_| wrong(name, cost, "a number"))?;
    Cost::try_from(number).map_err(|error| invalid(error.of(name)))
}

/// Returns a cost, 1 if there is none.
///
/// # Errors
/// Returns the errors of [`cost`].
pub(crate) fn cost_or_one(cost: Unknown<'_>) -> napi::Result<Cost> {
    Ok(optional("cost", cost, self::cost)?.unwrap_or(Cost::ONE))
}

/// The options that every rule has.
pub(crate) struct RuleOptions {
    /// The treatment of requests over the limit.
    action: Action,
    /// The greatest cost of a request.
    max_cost: Option<Cost>,
}

impl RuleOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// Returns an error with the name of the wrong option.
    pub(crate) fn read(options: &Options<'_>) -> napi::Result<Self> {
        let name = options.get("action", value::text)?;
        let max_delay = options.get("maxDelay", value::number)?;
        let max_cost = options.get("maxCost", cost)?;
        let action = action(name.as_deref().unwrap_or("deny"), max_delay)?;
        Ok(Self { action, max_cost })
    }

    /// Returns the rule of a text with these options.
    ///
    /// # Errors
    /// Returns an error with the library's message.
    pub(crate) fn rule(&self, text: &str) -> napi::Result<Rule> {
        let mut rule: Rule = text.parse().map_err(invalid)?;
        rule.accept_mode(Mode::Check).map_err(invalid)?;
        if let Some(max_cost) = self.max_cost {
            rule = rule.with_max_cost(max_cost).map_err(invalid)?;
        }
        rule.with_action(self.action).map_err(invalid)
    }
}

fn action(name: &str, max_delay: Option<f64>) -> napi::Result<Action> {
    let action = match name {
        "deny" => Action::Deny,
        "shadow-ban" => Action::ShadowBan,
        "quarantine" => Action::Quarantine,
        "observe" => Action::Observe,
        "delay" => {
            return Ok(Action::Delay {
                max: delay(max_delay)?,
            });
        }
        _ => {
            let expected = "deny, shadow-ban, quarantine, delay or observe";
            return Err(invalid(format!(
                "action: {} is not {expected}",
                shown_text(name)
            )));
        }
    };
    match max_delay {
        None => Ok(action),
        Some(_) => Err(invalid(format!(
            "maxDelay: the action is {name}; only delay has one"
        ))),
    }
}

fn delay(millis: Option<f64>) -> napi::Result<Duration> {
    let longest = Duration::from_secs(86_400);
    let delay = millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1e3).ok());
    delay.filter(|delay| *delay <= longest).ok_or_else(|| {
        invalid("maxDelay: the action delay needs the longest delay, 0 to 86400000 milliseconds")
    })
}

/// Returns the greatest number of clients, 100,000 if the option is not given.
///
/// # Errors
/// Returns an error for a number that is not whole, or not positive.
pub(crate) fn capacity(options: &Options<'_>) -> napi::Result<usize> {
    let clients = options.get("capacity", whole(1..=u32::MAX))?;
    Ok(clients.unwrap_or(100_000) as usize)
}

/// Returns an engine for so many clients of each rule, whose rules have files in a directory if there is a path.
///
/// # Errors
/// Returns an error with the library's message.
pub(crate) fn engine(path: Option<String>, capacity: usize) -> napi::Result<MemoryEngine> {
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
pub(crate) fn count(clients: Unknown<'_>) -> napi::Result<usize> {
    let count = optional("count", clients, whole(0..=u32::MAX))?;
    Ok(count.unwrap_or(10) as usize)
}

/// Returns a function that returns a whole number of a range.
pub(crate) fn whole(range: RangeInclusive<u32>) -> impl Fn(&str, Unknown<'_>) -> napi::Result<u32> {
    move |name, value| {
        let number = value::number(name, value)?;
        let least = *range.start();
        let most = *range.end();
        let is_inside = number >= f64::from(least) && number <= f64::from(most);
        if is_inside && number.fract() == 0.0 {
            return Ok(number as u32);
        }
        let number = shown_number(number);
        Err(invalid(format!(
            "{name}: {number} is not a whole number from {least} to {most}"
        )))
    }
}

/// Returns an instant in nanoseconds since the epoch; a number is rounded down to a whole one.
///
/// # Errors
/// Returns an error for an instant before the epoch, or too late for the clock.
pub(crate) fn instant(name: &str, at: Unknown<'_>) -> napi::Result<Nanos> {
    let nanos = match at.get_type()? {
        ValueType::Number => {
            let at = f64::from_unknown(at)?;
            (0.0..u64::MAX as f64).contains(&at).then_some(at as u64)
        }
        ValueType::BigInt => {
            let (is_negative, nanos, is_exact) = BigInt::from_unknown(at)?.get_u64();
            (is_exact && !is_negative).then_some(nanos)
        }
        _ => return Err(wrong(name, at, "a number or a BigInt")),
    };
    nanos.map(Nanos::new).ok_or_else(|| {
        invalid("at: expected the nanoseconds since the epoch, from 0 to 18446744073709551615")
    })
}

/// Returns the exception for a wrong argument.
pub(crate) fn invalid(error: impl Display) -> Error {
    Error::new(Status::InvalidArg, error.to_string())
}
