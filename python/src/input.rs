//! Arguments from Python: keys, costs and rules.

use std::borrow::Cow;
use std::time::Duration;

use earrrl::{Action, Cost, Mode, Rule};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyMapping, PyString};

use crate::error::invalid;

/// Calls `then` with the bytes of a key, which is a `str` or `bytes`. A text and its UTF-8 are the same key.
///
/// # Errors
/// Returns a `TypeError` for a key of another type, and a `UnicodeEncodeError` for a text with lone surrogates.
#[inline]
pub(crate) fn with_key<T>(key: &Bound<'_, PyAny>, then: impl FnOnce(&[u8]) -> T) -> PyResult<T> {
    if let Ok(text) = key.cast::<PyString>() {
        return Ok(then(text.to_cow()?.as_bytes()));
    }
    match key.cast::<PyBytes>() {
        Ok(bytes) => Ok(then(bytes.as_bytes())),
        Err(_) => Err(wrong_type("key", key, "str or bytes")),
    }
}

/// Returns the bytes of a key; see [`with_key`].
///
/// # Errors
/// Returns the errors of [`with_key`].
pub(crate) fn key_bytes<'a>(key: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(bytes) = key.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    with_key(key, |key| Cow::Owned(key.to_vec()))
}

/// Returns a mapping as a `dict`.
///
/// # Errors
/// Returns a `TypeError` for another type.
pub(crate) fn dict<'py>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    if let Ok(dict) = value.cast::<PyDict>() {
        return Ok(dict.clone());
    }
    let mapping = value
        .cast::<PyMapping>()
        .map_err(|_| wrong_type(name, value, "a mapping"))?;
    let dict = PyDict::new(value.py());
    dict.update(mapping)?;
    Ok(dict)
}

/// Returns a cost: an `int` or a `float` from 0 to 1e18, 1 if there is none.
///
/// # Errors
/// Returns a `TypeError` or `ValueError` that shows what would be right.
#[inline]
pub(crate) fn cost(cost: Option<&Bound<'_, PyAny>>) -> PyResult<Cost> {
    let Some(cost) = cost else {
        return Ok(Cost::ONE);
    };
    if cost.is_instance_of::<PyInt>() && !cost.is_instance_of::<PyBool>() {
        return whole_cost(cost);
    }
    match cost.cast::<PyFloat>() {
        Ok(units) => Cost::try_from(units.value()).map_err(|error| invalid(error.of("cost"))),
        Err(_) => Err(wrong_type("cost", cost, "an int or a float from 0 to 1e18")),
    }
}

fn whole_cost(cost: &Bound<'_, PyAny>) -> PyResult<Cost> {
    let most = Cost::MAX.billionths() / Cost::ONE.billionths();
    match cost.extract::<u64>() {
        Ok(units) if u128::from(units) <= most => Ok(Cost::from_units(units)),
        _ => Err(PyValueError::new_err(
            "cost: this int is not from 0 to 1e18",
        )),
    }
}

/// Returns the rule of a text, with its action and the greatest cost of a request.
///
/// # Errors
/// Returns a `ValueError` with the library's message.
pub(crate) fn rule(
    text: &str,
    action: Option<&str>,
    max_delay: Option<f64>,
    max_cost: Option<&Bound<'_, PyAny>>,
) -> PyResult<Rule> {
    let mut rule: Rule = text.parse().map_err(invalid)?;
    rule.accept_mode(Mode::Check).map_err(invalid)?;
    if let Some(max_cost) = max_cost {
        rule = rule.with_max_cost(cost(Some(max_cost))?).map_err(invalid)?;
    }
    rule.with_action(self::action(action.unwrap_or("deny"), max_delay)?)
        .map_err(invalid)
}

fn action(name: &str, max_delay: Option<f64>) -> PyResult<Action> {
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
            return Err(PyValueError::new_err(format!(
                "action: {name:?} is not {expected}"
            )));
        }
    };
    match max_delay {
        None => Ok(action),
        Some(_) => Err(PyValueError::new_err(format!(
            "max_delay: the action is {name}; only delay has one"
        ))),
    }
}

fn delay(seconds: Option<f64>) -> PyResult<Duration> {
    let seconds = seconds.ok_or_else(|| {
        PyValueError::new_err("max_delay: the action delay needs the longest delay")
    })?;
    let delay = Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|delay| *delay <= LONGEST_DELAY);
    delay.ok_or_else(|| {
        PyValueError::new_err(format!(
            "max_delay: {seconds} is not from 0 to 86400 seconds"
        ))
    })
}

/// The longest time for which a request may be held back.
const LONGEST_DELAY: Duration = Duration::from_secs(86_400);

/// Returns the `TypeError` for an argument.
#[cold]
pub(crate) fn wrong_type(name: &str, found: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let found = found
        .get_type()
        .name()
        .map_or_else(|_| String::from("object"), |name| name.to_string());
    PyTypeError::new_err(format!("{name}: expected {expected}, not {found}"))
}
