//! Arguments from JavaScript: keys, costs and rules.

use std::ops::RangeInclusive;

use earrrl::{Cost, Nanos};
use earrrl_bindings::RuleOptions;
use napi::bindgen_prelude::{BigInt, BufferSlice, FromNapiValue, TypeName, Unknown};
use napi::{Env, JsValue as _, ValueType, sys};

use crate::value::{self, Options, failed, invalid, optional, shown_number, wrong};

/// The size of the buffer for short texts of ASCII, which need no allocation. Node copies the units of a text in half
/// the time that it takes to encode them.
const SHORT: usize = 48;

/// The types of keys, as errors name them.
const KEYS: &str = "a string, a whole number, a BigInt or a Buffer";
/// The greatest whole number that has no neighbour in the same double.
const SAFE: f64 = 9_007_199_254_740_991.0;

/// A key: a text or bytes, or a whole number, of which the decimal text counts. A text and its UTF-8 are the same key.
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
        let mut units = [0_u16; SHORT];
        let mut length = 0;
        let start = units.as_mut_ptr();
        // SAFETY: the caller passes a value of this environment; there is room for `SHORT` units.
        let status =
            unsafe { sys::napi_get_value_string_utf16(env, value, start, SHORT, &mut length) };
        if status == sys::Status::napi_ok
            && length < SHORT - 1
            && units.iter().all(|unit| *unit < 0x80)
        {
            return Ok(Self::Short(units.map(|unit| unit as u8), length));
        }
        // SAFETY: as above.
        Self::read(unsafe { Unknown::from_napi_value(env, value)? })
    }
}

impl<'a> Key<'a> {
    /// Reads a key that is not a short text.
    ///
    /// # Errors
    /// Returns an error for a value of another type, and for a number that is not whole or too great to be exact.
    #[cold]
    pub(crate) fn read(value: Unknown<'a>) -> napi::Result<Self> {
        match value.get_type()? {
            ValueType::String => String::from_unknown(value).map(Self::Long),
            ValueType::Number => {
                let number = f64::from_unknown(value)?;
                if number.fract() != 0.0 || number.abs() > SAFE {
                    return Err(wrong("key", value, KEYS));
                }
                Ok(Self::Long((number as i64).to_string()))
            }
            ValueType::BigInt => {
                let text = value.coerce_to_string()?.into_utf8()?;
                Ok(Self::Long(text.as_str()?.to_owned()))
            }
            // Node before 20.3 ends the process if other values are read as buffers.
            ValueType::Object if value.is_buffer()? => {
                BufferSlice::from_unknown(value).map(Self::Bytes)
            }
            _ => Err(wrong("key", value, KEYS)),
        }
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

/// Reads the options that every rule has.
///
/// # Errors
/// Returns an error with the name of the wrong option.
pub(crate) fn rule_options(options: &Options<'_>) -> napi::Result<RuleOptions> {
    let action = options.get("action", value::text)?;
    let millis = options.get("maxDelay", value::number)?;
    let max_cost = options.get("maxCost", cost)?;
    let max_delay = millis.map(|millis| millis / 1e3);
    RuleOptions::new(action.as_deref(), max_delay, max_cost).map_err(failed)
}

/// Returns the greatest number of clients, 100,000 if the option is not given.
///
/// # Errors
/// Returns an error for a number that is not whole, or not positive.
pub(crate) fn capacity(options: &Options<'_>) -> napi::Result<usize> {
    let clients = options.get("capacity", whole(1..=u32::MAX))?;
    Ok(clients.unwrap_or(100_000) as usize)
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
