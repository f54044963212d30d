//! Compiles the guest agent: a static binary for the musl target.
//!
//! Paths of this machine that the compiler would write into panic messages are replaced, so that the
//! binary is the same wherever the source tree and cargo's home are.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cargo;
use crate::progress::Task;

/// The agent's package and binary.
const PACKAGE: &str = "hayfork-agent";

/// Compiles the agent and gives the path of the binary. `target_directory` keeps the build apart from
/// the usual one.
///
/// # Errors
/// The target cannot be installed, or the agent does not compile.
pub(crate) fn compile(tree: &Path, target_directory: Option<&Path>, task: &Task) -> Result<PathBuf> {
    let target = cargo::static_target();
    cargo::ensure_target(&target, tree, task)?;
    let mut command = cargo::command(tree);
    command
        .args(["build", "--profile", "agent", "--package", PACKAGE, "--target", &target])
        .env("CARGO_ENCODED_RUSTFLAGS", flags(tree, target_directory));
    if let Some(directory) = target_directory {
        command.arg("--target-dir").arg(directory);
    }
    let built = cargo::build(&mut command, task).context("the agent does not compile")?;
    let agent = built.into_iter().find(|executable| executable.kind == "bin" && executable.target == PACKAGE);
    Ok(agent.context("cargo did not say where the agent is")?.path)
}

/// Compiler flags, separated as CARGO_ENCODED_RUSTFLAGS wants it (by 0x1f).
fn flags(tree: &Path, target_directory: Option<&Path>) -> OsString {
    let cargo_home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let mut replaced = vec![(tree.to_owned(), "/hayfork")];
    replaced.extend(target_directory.map(|directory| (directory.to_owned(), "/hayfork/target")));
    if let Some(cargo_home) = cargo_home {
        // Sources of dependencies lie in a folder named after the registry they came from, which may be a mirror. They
        // are there: this program was built from them. Of several matching prefixes the compiler takes the last.
        let sources = cargo_home.join("registry/src").read_dir().into_iter().flatten().flatten();
        let mut folders: Vec<PathBuf> = sources.map(|entry| entry.path()).collect();
        folders.sort();
        replaced.push((cargo_home, "/cargo"));
        replaced.extend(folders.into_iter().map(|folder| (folder, "/cargo")));
    }
    let mut flags = OsString::new();
    for (from, to) in replaced {
        if !flags.is_empty() {
            flags.push("\x1f");
        }
        flags.push("--remap-path-prefix=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_this_machine_are_replaced() {
        let flags = flags(Path::new("/home/me/hayfork"), Some(Path::new("/tmp/again")));
        let flags = flags.to_str().expect("text");
        assert!(flags.contains("--remap-path-prefix=/home/me/hayfork=/hayfork\x1f"), "{flags}");
        assert!(flags.contains("--remap-path-prefix=/tmp/again=/hayfork/target"), "{flags}");
    }
}
