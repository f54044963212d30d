//! Native module `hayfork._native`: the engine, as thin as Python can use it.
//!
//! Every operation returns at once with a [`call::Call`], whether it is waited for by a blocking
//! caller or by an event loop. **No thread of ours ever takes the GIL**: results are stored as plain
//! Rust values and become Python objects on the caller's own thread; an event loop is woken through a
//! descriptor that it watches itself ([`waker`]). So nothing of ours can run into an interpreter that
//! is shutting down, and any number of event loops may be used.
//!
//! Everything that is a matter of convenience (callbacks, decoding, error classes, models) is in the
//! Python package.

mod call;
mod engine;
mod error;
mod run;
mod runtime;
mod sandbox;
mod transfer;
mod value;
mod waker;
mod watch;

use pyo3::prelude::*;

/// The module; see its Python stub for the signatures.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("NativeError", module.py().get_type::<error::NativeError>())?;
    module.add_class::<call::Call>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<run::Run>()?;
    module.add_class::<sandbox::Sandbox>()?;
    module.add_class::<sandbox::Snapshot>()?;
    module.add_class::<transfer::Upload>()?;
    module.add_class::<transfer::Download>()?;
    module.add_class::<waker::Waker>()?;
    module.add_class::<watch::Watch>()?;
    Ok(())
}
