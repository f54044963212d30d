//! Cargo, run by us for another target than this program's own.

use std::env;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::process;
use crate::progress::Task;

/// Something that can be run, as cargo reports it after building it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Executable {
    /// The target's name: a crate's, a test's, an example's.
    pub(crate) target: String,
    /// The target's kind as cargo has it: `lib`, `bin`, `test`, `example`.
    pub(crate) kind: String,
    /// The file.
    pub(crate) path: PathBuf,
}

/// The target for static programs, which run where there is nothing but a kernel.
pub(crate) fn static_target() -> String {
    format!("{}-unknown-linux-musl", env::consts::ARCH)
}

/// The cargo that runs this program, or the one in PATH.
///
/// Some crate may have a piece of C (criterion's `alloca` has), for which a compiler of the static target's own would be looked
/// for, from a package that nothing else needs. The host's does: it is the same processor, and such a piece calls no library.
pub(crate) fn command(tree: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(tree);
    let compiler = format!("CC_{}", static_target().replace('-', "_"));
    if env::var_os(&compiler).is_none() {
        command.env(compiler, "cc");
    }
    command
}

/// Runs a cargo command that builds, and gives what it built.
///
/// # Errors
/// It does not compile.
pub(crate) fn build(command: &mut Command, task: &Task) -> Result<Vec<Executable>> {
    let messages = process::stream(
        command.args(["--message-format", "json-render-diagnostics"]),
        |mut stdout| {
            let mut text = String::new();
            stdout.read_to_string(&mut text)?;
            Ok(text)
        },
        |line| task.detail(line.trim()),
    )?;
    Ok(executables(&messages))
}

/// The executables in cargo's messages, one JSON object a line.
fn executables(messages: &str) -> Vec<Executable> {
    #[derive(Deserialize)]
    struct Message {
        reason: String,
        executable: Option<PathBuf>,
        target: Option<Target>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.reason == "compiler-artifact")
        .filter_map(|message| {
            let target = message.target?;
            Some(Executable {
                target: target.name,
                kind: target.kind.into_iter().next()?,
                path: message.executable?,
            })
        })
        .collect()
}

/// Installs a target's standard library if it is not there.
///
/// # Errors
/// It is not there and cannot be installed.
pub(crate) fn ensure_target(target: &str, tree: &Path, task: &Task) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_found_among_cargos_messages() {
        let messages = r#"
{"reason":"compiler-artifact","executable":null,"target":{"name":"hayfork_vmm","kind":["lib"]}}
{"reason":"build-script-executed"}
{"reason":"compiler-artifact","executable":"/t/deps/hayfork_vmm-1","target":{"name":"hayfork_vmm","kind":["lib"]}}
{"reason":"compiler-artifact","executable":"/t/deps/exits-2","target":{"name":"exits","kind":["test"]}}
{"reason":"build-finished","success":true}"#;
        let found = executables(messages);
        let expected = |target: &str, kind: &str, path: &str| Executable {
            target: target.to_owned(),
            kind: kind.to_owned(),
            path: path.into(),
        };
        assert_eq!(
            found,
            [
                expected("hayfork_vmm", "lib", "/t/deps/hayfork_vmm-1"),
                expected("exits", "test", "/t/deps/exits-2")
            ]
        );
        assert!(executables("not json\n").is_empty());
    }
}
