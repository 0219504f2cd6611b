//! Arguments from Python: keys, costs and mappings.

use std::borrow::Cow;

use earrrl::Cost;
use earrrl_bindings::RuleOptions;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyMapping, PyString, PyType};

use crate::error::{invalid, raised};

/// The types of keys, as errors name them.
pub(crate) const KEYS: &str = "str, bytes, int, UUID or Decimal";

/// Calls `then` with the bytes of a key, which is a `str` or `bytes`, or an `int`, a `UUID` or a `Decimal`, of which the
/// text counts. A text and its UTF-8 are the same key.
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
        Err(_) if is_plain_id(key)? => Ok(then(key.str()?.to_cow()?.as_bytes())),
        Err(_) => Err(wrong_type("key", key, KEYS)),
    }
}

/// Returns true for an id of another type than text, such as the primary key of a table. A `float` is none, since equal
/// ids could have different texts, and neither is a `bool`.
#[cold]
fn is_plain_id(key: &Bound<'_, PyAny>) -> PyResult<bool> {
    static UUID: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static DECIMAL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = key.py();
    if key.is_instance_of::<PyInt>() {
        return Ok(!key.is_instance_of::<PyBool>());
    }
    Ok(key.is_instance(UUID.import(py, "uuid", "UUID")?)?
        || key.is_instance(DECIMAL.import(py, "decimal", "Decimal")?)?)
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

/// Returns a cost: an `int`, a `float` or a `bool` from 0 to 1e18, 1 if there is none. A function that returns whether a
/// response costs something returns a `bool`.
///
/// # Errors
/// Returns a `TypeError` or `ValueError` that shows what would be right.
#[inline]
pub(crate) fn cost(cost: Option<&Bound<'_, PyAny>>) -> PyResult<Cost> {
    let Some(cost) = cost else {
        return Ok(Cost::ONE);
    };
    if cost.is_instance_of::<PyInt>() {
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

/// Returns the options of a rule.
///
/// # Errors
/// Returns a `ValueError` for an option that is wrong.
pub(crate) fn rule_options(
    action: Option<&str>,
    max_delay: Option<f64>,
    max_cost: Option<&Bound<'_, PyAny>>,
) -> PyResult<RuleOptions> {
    let max_cost = max_cost.map(|most| cost(Some(most))).transpose()?;
    RuleOptions::new(action, max_delay, max_cost).map_err(raised)
}

/// Returns the `TypeError` for an argument.
#[cold]
pub(crate) fn wrong_type(name: &str, found: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let found = type_name(found);
    PyTypeError::new_err(format!("{name}: expected {expected}, not {found}"))
}

/// Returns the name of a value's type.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    let name = value.get_type().name();
    name.map_or_else(|_| String::from("object"), |name| name.to_string())
}
