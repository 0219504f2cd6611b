//! The functions of rules: they are called with a request, and return a value at once.
//!
//! A coroutine is true, so an `async def` as an exemption would exempt everybody. Asynchronous functions are refused when
//! the rule is made. What cannot be seen then, a plain function that returns something awaitable, is refused when it is
//! called: the request is not passed on.

use pyo3::PyTraverseError;
use pyo3::PyVisit;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};

use crate::input::{type_name, wrong_type};

/// A function of a rule.
pub(crate) struct Function {
    /// The option whose value the function is.
    option: &'static str,
    function: Py<PyAny>,
}

impl Function {
    /// Returns a function as the value of an option.
    ///
    /// # Errors
    /// Returns a `TypeError` for a value that cannot be called, or is asynchronous.
    pub(crate) fn new(option: &'static str, function: &Bound<'_, PyAny>) -> PyResult<Self> {
        if !function.is_callable() {
            return Err(wrong_type(option, function, "a function"));
        }
        if is_asynchronous(function)? {
            let name = name_of(function);
            return Err(PyTypeError::new_err(format!(
                "{option}: {name} is asynchronous; expected a function that returns its value at once"
            )));
        }
        Ok(Self {
            option,
            function: function.clone().unbind(),
        })
    }

    /// Calls the function.
    ///
    /// # Errors
    /// Returns its exception, and a `TypeError` if its result must be awaited.
    pub(crate) fn call<'py>(
        &self,
        py: Python<'py>,
        arguments: impl PyCallArgs<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = self.function.bind(py).call1(arguments)?;
        let is_plain = value.is_none()
            || value.is_instance_of::<PyBool>()
            || value.is_instance_of::<PyString>()
            || value.is_instance_of::<PyInt>()
            || value.is_instance_of::<PyFloat>();
        if is_plain || !(value.hasattr("__await__")? || value.hasattr("__aiter__")?) {
            return Ok(value);
        }
        // A coroutine that is never awaited would be warned of, too.
        if value.hasattr("close")? {
            value.call_method0("close")?;
        }
        Err(self.wrong(&value, "a value, since functions of rules are not awaited"))
    }

    /// Returns the `TypeError` for a result of the function.
    pub(crate) fn wrong(&self, found: &Bound<'_, PyAny>, expected: &str) -> PyErr {
        let name = name_of(self.function.bind(found.py()));
        let found = type_name(found);
        let option = self.option;
        PyTypeError::new_err(format!(
            "{option}: {name} returned {found}; expected {expected}"
        ))
    }

    /// Shows the function to Python's garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.function)
    }
}

/// Returns true for `async def`, also behind `functools.partial` and as the `__call__` of an object.
fn is_asynchronous(function: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = function.py();
    let partial = py.import("functools")?.getattr("partial")?;
    let mut function = function.clone();
    while function.is_instance(&partial)? {
        function = function.getattr("func")?;
    }
    let inspect = py.import("inspect")?;
    for function in [&function, &function.get_type().getattr("__call__")?] {
        for test in ["iscoroutinefunction", "isasyncgenfunction"] {
            if inspect.call_method1(test, (function,))?.is_truthy()? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns the name of a function, or of the type of another callable.
fn name_of(function: &Bound<'_, PyAny>) -> String {
    let name = function.getattr("__qualname__");
    name.map_or_else(|_| type_name(function), |name| name.to_string())
}
