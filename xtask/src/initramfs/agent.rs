//! Compiles the guest agent: a static binary for the musl target.
//!
//! Paths of this machine that the compiler would write into panic messages are replaced, so that the
//! binary is the same wherever the source tree and cargo's home are.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::process;
use crate::progress::Task;

/// The agent's package and binary.
const PACKAGE: &str = "hayfork-agent";

/// Compiles the agent and gives the path of the binary. `target_directory` keeps the build apart from
/// the usual one.
///
/// # Errors
/// The target cannot be installed, or the agent does not compile.
pub(crate) fn compile(tree: &Path, target_directory: Option<&Path>, task: &Task) -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-musl", env::consts::ARCH);
    ensure_target(&target, tree, task)?;
    let mut command = Command::new(cargo());
    command
        .current_dir(tree)
        .args(["build", "--profile", "agent", "--package", PACKAGE, "--target", &target])
        .args(["--message-format", "json-render-diagnostics"])
        .env("CARGO_ENCODED_RUSTFLAGS", flags(tree, target_directory));
    if let Some(directory) = target_directory {
        command.arg("--target-dir").arg(directory);
    }
    let messages = process::stream(
        &mut command,
        |mut stdout| {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut stdout, &mut text)?;
            Ok(text)
        },
        |line| task.detail(line.trim()),
    )
    .context("the agent does not compile")?;
    executable(&messages).context("cargo did not say where the agent is")
}

/// The path of the agent in cargo's messages, one JSON object a line.
fn executable(messages: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        reason: String,
        executable: Option<PathBuf>,
    }
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.reason == "compiler-artifact")
        .filter_map(|message| message.executable)
        .find(|path| path.file_stem().is_some_and(|name| name == PACKAGE))
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

/// Installs the target's standard library if it is not there.
fn ensure_target(target: &str, tree: &Path, task: &Task) -> Result<()> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut query = Command::new(rustc);
    let library =
        process::output(query.current_dir(tree).args(["--print", "target-libdir", "--target", target]))?;
    let installed = Path::new(library.trim()).read_dir().is_ok_and(|mut entries| entries.next().is_some());
    if installed {
        return Ok(());
    }
    if !process::exists("rustup") {
        bail!(
            "the Rust standard library for {target} is missing; install Rust by rustup, or the package of your \
             distribution that brings this target"
        );
    }
    task.step(&format!("installing the Rust target {target} by rustup"));
    process::output(Command::new("rustup").current_dir(tree).args(["target", "add", target]))
        .with_context(|| format!("cannot install the Rust target {target}"))?;
    Ok(())
}

/// The cargo that runs this program, or the one in PATH.
fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_path_is_found_among_cargos_messages() {
        let messages = r#"
{"reason":"compiler-artifact","executable":null}
{"reason":"build-script-executed"}
{"reason":"compiler-artifact","executable":"/t/other"}
{"reason":"compiler-artifact","executable":"/t/x86_64-unknown-linux-musl/agent/hayfork-agent"}
{"reason":"build-finished","success":true}"#;
        let expected = Path::new("/t/x86_64-unknown-linux-musl/agent/hayfork-agent");
        assert_eq!(executable(messages).as_deref(), Some(expected));
        assert_eq!(executable("not json\n"), None);
    }

    #[test]
    fn paths_of_this_machine_are_replaced() {
        let flags = flags(Path::new("/home/me/hayfork"), Some(Path::new("/tmp/again")));
        let flags = flags.to_str().expect("text");
        assert!(flags.contains("--remap-path-prefix=/home/me/hayfork=/hayfork\x1f"), "{flags}");
        assert!(flags.contains("--remap-path-prefix=/tmp/again=/hayfork/target"), "{flags}");
    }
}
