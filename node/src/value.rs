//! Values of JavaScript. What is wrong about one is said in its language: which argument it is, what it is, and
//! what would be right.

use std::fmt::Display;

use napi::bindgen_prelude::{Array, FromNapiValue, JsObjectValue as _, Object, Unknown};
use napi::{Error, Result, Status, ValueType};

/// The most characters of a string that an error shows.
const SHOWN: usize = 40;

/// Returns a string.
pub(crate) fn text(name: &str, value: Unknown<'_>) -> Result<String> {
    read(name, value, ValueType::String, "a string")
}

/// Returns a string if it is needed, or else an empty one, without a copy of what is there.
pub(crate) fn text_if(is_needed: bool, name: &str, value: Unknown<'_>) -> Result<String> {
    if is_needed || value.get_type()? != ValueType::String {
        return text(name, value);
    }
    Ok(String::new())
}

/// Returns the text of a rule.
pub(crate) fn rule(name: &str, value: Unknown<'_>) -> Result<String> {
    read(
        name,
        value,
        ValueType::String,
        "a rule such as \"fixed-window 5/1m\"",
    )
}

/// Returns a number.
pub(crate) fn number(name: &str, value: Unknown<'_>) -> Result<f64> {
    read(name, value, ValueType::Number, "a number")
}

/// Returns a boolean.
pub(crate) fn flag(name: &str, value: Unknown<'_>) -> Result<bool> {
    read(name, value, ValueType::Boolean, "true or false")
}

fn read<T: FromNapiValue>(
    name: &str,
    value: Unknown<'_>,
    kind: ValueType,
    expected: &str,
) -> Result<T> {
    if value.get_type()? == kind {
        T::from_unknown(value)
    } else {
        Err(wrong(name, value, expected))
    }
}

/// Returns what `read` returns for each element of an array.
pub(crate) fn list<'a, T>(
    name: &str,
    value: Unknown<'a>,
    read: impl Fn(&str, Unknown<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    let array = Array::from_unknown(value).map_err(|_| wrong(name, value, "an array"))?;
    let elements = (0..array.len()).filter_map(|place| array.get(place).transpose());
    elements.map(|element| read(name, element?)).collect()
}

/// Returns what `read` returns, or `None` for undefined and null.
pub(crate) fn optional<'a, T>(
    name: &str,
    value: Unknown<'a>,
    read: impl Fn(&str, Unknown<'a>) -> Result<T>,
) -> Result<Option<T>> {
    match value.get_type()? {
        ValueType::Undefined | ValueType::Null => Ok(None),
        _ => read(name, value).map(Some),
    }
}

/// Returns the exception for a wrong argument.
pub(crate) fn invalid(error: impl Display) -> Error {
    Error::new(Status::InvalidArg, error.to_string())
}

/// Returns the exception for an error of the settings, whose names have JavaScript's form here.
pub(crate) fn failed(error: earrrl_bindings::Error) -> Error {
    let mut text = error.to_string();
    if matches!(error, earrrl_bindings::Error::Invalid(_)) {
        for (name, own) in SPELLED {
            text = text.replace(name, own);
        }
    }
    invalid(text)
}

/// The settings whose names have several words, and their names in JavaScript.
const SPELLED: [(&str, &str); 4] = [
    ("max_delay", "maxDelay"),
    ("trusted_proxies", "trustedProxies"),
    ("ipv4_prefix", "ipv4Prefix"),
    ("ipv6_prefix", "ipv6Prefix"),
];

/// Returns the error for an argument that has the wrong type.
pub(crate) fn wrong(name: &str, value: Unknown<'_>, expected: &str) -> Error {
    invalid(format!("{name}: {} is not {expected}", shown(value)))
}

/// Returns a description of a value. No code of the caller runs.
fn shown(value: Unknown<'_>) -> String {
    match value.get_type() {
        Ok(ValueType::Undefined) => "undefined".to_owned(),
        Ok(ValueType::Null) => "null".to_owned(),
        Ok(ValueType::Boolean) => bool::from_unknown(value).is_ok_and(|flag| flag).to_string(),
        Ok(ValueType::Number) => shown_number(f64::from_unknown(value).unwrap_or(f64::NAN)),
        Ok(ValueType::String) => shown_text(&String::from_unknown(value).unwrap_or_default()),
        Ok(ValueType::BigInt) => "a BigInt".to_owned(),
        Ok(ValueType::Symbol) => "a symbol".to_owned(),
        Ok(ValueType::Function) => "a function".to_owned(),
        _ if Array::from_unknown(value).is_ok() => "an array".to_owned(),
        _ => "an object".to_owned(),
    }
}

/// Returns a number as JavaScript shows it.
pub(crate) fn shown_number(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    let is_short = number == 0.0 || number.is_nan() || (1e-6..1e21).contains(&number.abs());
    if is_short {
        number.to_string()
    } else {
        format!("{number:e}")
    }
}

/// Returns the beginning of a string, in quotation marks.
pub(crate) fn shown_text(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}", format!("{}…", &text[..end])),
    }
}

/// The options of a call: the properties of an object.
pub(crate) struct Options<'a> {
    object: Object<'a>,
}

impl<'a> Options<'a> {
    /// Returns the options of an object.
    ///
    /// # Errors
    /// Returns an error for a value that is no object.
    pub(crate) fn new(name: &str, value: Unknown<'a>) -> Result<Self> {
        Ok(Self {
            object: read(name, value, ValueType::Object, "an object")?,
        })
    }

    /// Returns the options of an object that has no others than the known ones. A misspelt option would
    /// otherwise have no effect, and nobody would notice.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new), and one that lists the known options.
    pub(crate) fn of(name: &str, value: Unknown<'a>, known: &[&str]) -> Result<Self> {
        let options = Self::new(name, value)?;
        let names = Object::keys(&options.object)?;
        let Some(wrong) = names.iter().find(|name| !known.contains(&name.as_str())) else {
            return Ok(options);
        };
        let meant = earrrl::internal::nearest(wrong, known.iter().copied());
        let meant = meant.map_or_else(String::new, |name| format!("; did you mean {name}?"));
        let wrong = shown_text(wrong);
        let known = known.join(", ");
        Err(invalid(format!(
            "{wrong} is not an option; expected {known}{meant}"
        )))
    }

    /// Returns what `read` returns for an option, or `None` if it is not given.
    ///
    /// # Errors
    /// Returns the errors of `read`, and what a getter of the caller throws.
    pub(crate) fn get<T>(
        &self,
        name: &'static str,
        read: impl Fn(&str, Unknown<'a>) -> Result<T>,
    ) -> Result<Option<T>> {
        optional(name, self.object.get_named_property_unchecked(name)?, read)
    }

    /// Returns what `read` returns for an option that must be given.
    ///
    /// # Errors
    /// Returns the errors of [`get`](Self::get).
    pub(crate) fn required<T>(
        &self,
        name: &'static str,
        read: impl Fn(&str, Unknown<'a>) -> Result<T>,
    ) -> Result<T> {
        read(name, self.object.get_named_property_unchecked(name)?)
    }
}
