//! Errors on their way to Python.

use hayfork_sandbox::Error;
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyException;

create_exception!(
    hayfork._native,
    NativeError,
    PyException,
    "An engine error with args (code, message, remedy); the package turns it into its own classes."
);

/// The Python exception for an engine error.
pub(crate) fn to_python(error: &Error) -> PyErr {
    NativeError::new_err((error.code(), error.to_string(), error.remedy()))
}
