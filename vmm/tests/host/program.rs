//! The program of worker processes that belongs to the tests. Part of test programs in several packages, which include this file by
//! its path.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// `hayfork-worker`: what `HAYFORK_WORKER` names, else built anew if it is not of this source, since cargo builds programs of
/// other packages only when it is told to.
pub(crate) fn worker() -> PathBuf {
    const NAME: &str = "hayfork-worker";
    static BUILT: Once = Once::new();

    if let Some(program) = std::env::var_os("HAYFORK_WORKER") {
        return program.into();
    }
    BUILT.call_once(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--quiet", "--package", "hayfork-vmm", "--bin", NAME, "--manifest-path"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
            .status();
        assert!(built.is_ok_and(|status| status.success()), "{NAME} does not compile");
    });
    // Tests lie in a folder beside it.
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join(NAME)
}
