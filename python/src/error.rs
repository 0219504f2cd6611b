//! The library's errors as Python's exceptions, with the library's messages.

use earrrl::{BuildError, EngineError, RuleError, StateError};
use earrrl_bindings::Error;
use pyo3::PyErr;
use pyo3::exceptions::{
    PyKeyError, PyMemoryError, PyNotImplementedError, PyOSError, PyRuntimeError, PyValueError,
};

/// Returns the exception for an error of the settings or arguments.
pub(crate) fn raised(error: Error) -> PyErr {
    match error {
        Error::Build(error) => not_built(error),
        Error::Engine(error) => refused(error),
        Error::UnknownName(_) => PyKeyError::new_err(error.to_string()),
        Error::Invalid(text) => PyValueError::new_err(text),
    }
}

/// Returns the exception for an invalid rule, name or cost.
pub(crate) fn invalid(error: RuleError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Returns the exception for a limiter that cannot be built.
pub(crate) fn not_built(error: BuildError) -> PyErr {
    match &error {
        BuildError::State(StateError::Unsupported { .. }) => {
            PyNotImplementedError::new_err(error.to_string())
        }
        BuildError::State(_) | BuildError::NoRandomness(_) => PyOSError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

/// Returns the exception for a decision that an engine refuses.
pub(crate) fn refused(error: EngineError) -> PyErr {
    let text = error.to_string();
    match error {
        EngineError::Invalid(_) | EngineError::Charges(_) => PyValueError::new_err(text),
        EngineError::UnknownRule(_) => PyKeyError::new_err(text),
        EngineError::Reservations { .. } => PyMemoryError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}
