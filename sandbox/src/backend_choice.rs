//! Which backend runs the machines.

use std::sync::Arc;

use hayfork_qemu::{Qemu, QemuOptions};
use hayfork_vmm::backend::Backend;

use crate::error::Error;
use crate::options::EngineOptions;

/// The backend that the options ask for. Does not look at the host: that is [`Backend::check`]'s, at the first launch.
///
/// # Errors
/// A name that no backend has.
pub(crate) fn choose(options: &EngineOptions) -> Result<Arc<dyn Backend>, Error> {
    match options.backend.as_deref() {
        None | Some("auto" | "qemu") => {
            Ok(Arc::new(Qemu::new(QemuOptions { binary: options.qemu.clone(), ..QemuOptions::default() })))
        }
        Some(other) => {
            Err(Error::bad_option(format!("there is no backend {other:?}: use \"auto\" or \"qemu\"")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: Option<&str>) -> Result<Arc<dyn Backend>, Error> {
        choose(&EngineOptions { backend: name.map(str::to_owned), ..EngineOptions::default() })
    }

    #[test]
    fn names_are_known_or_refused() {
        for name in [None, Some("auto"), Some("qemu")] {
            assert_eq!(named(name).unwrap().name(), "qemu");
        }
        for name in ["", "QEMU", "docker"] {
            assert_eq!(named(Some(name)).err().unwrap().code(), "bad_option");
        }
    }
}
