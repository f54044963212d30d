//! Running a program and keeping what it said.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use crate::{Error, Result, Step};

/// How many lines of a failed program an error carries.
const TAIL: usize = 40;

/// A command that gets nothing of this process's environment but where programs and the home are. What a build embeds or obeys
/// (`MAKEFLAGS`, `KCFLAGS`, `ARCH`, locale …) cannot leak in.
pub(crate) fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C");
    for name in ["PATH", "HOME", "TMPDIR"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// Runs a program to its end, handing each line of its output (standard output and error together) to `on_line`.
///
/// # Errors
/// The program cannot be started, or ends with anything but 0: then the error carries its last lines.
pub(crate) fn run(step: Step, mut command: Command, mut on_line: impl FnMut(&str)) -> Result<()> {
    let program = describe(&command);
    let failed = |source: io::Error| Error::Io { action: "run", path: program.clone().into(), source };
    let (reader, writer) = io::pipe().map_err(failed)?;
    let errors = writer.try_clone().map_err(failed)?;
    let mut child = command.stdin(Stdio::null()).stdout(writer).stderr(errors).spawn().map_err(failed)?;
    // The command holds the write end of the pipe; as long as it lives, the reader never sees the end.
    drop(command);

    let mut tail = Tail::default();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(error));
            }
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\n', '\r']);
        tail.push(text);
        on_line(text);
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Failed { step, program, status: words(status), tail: tail.text() })
}

/// The last lines of some output.
#[derive(Debug, Default)]
pub(crate) struct Tail(VecDeque<String>);

impl Tail {
    pub(crate) fn push(&mut self, line: &str) {
        if self.0.len() == TAIL {
            self.0.pop_front();
        }
        self.0.push_back(line.to_owned());
    }

    pub(crate) fn text(&self) -> String {
        self.0.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

/// An exit status in words, for errors.
pub(crate) fn words(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

fn describe(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or(OsStr::new("?"));
    let mut text = name.to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = clean("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_of_both_streams_arrive() {
        let mut lines = Vec::new();
        run(Step::Compile, shell("echo one; echo two >&2; printf three"), |line| lines.push(line.to_owned()))
            .expect("runs");
        assert_eq!(lines, ["one", "two", "three"]);
    }

    #[test]
    fn a_failure_carries_the_last_forty_lines() {
        let error = run(
            Step::Compile,
            shell("i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; exit 3"),
            |_| {},
        )
        .expect_err("fails");
        let Error::Failed { status, tail, .. } = &error else { panic!("{error}") };
        assert_eq!(status, "exit code 3");
        let lines: Vec<&str> = tail.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[39]), (40, "line 60", "line 99"));
    }

    #[test]
    fn the_environment_is_clean() {
        let mut lines = Vec::new();
        run(Step::Compile, shell("env"), |line| lines.push(line.to_owned())).expect("runs");
        for line in &lines {
            let name = line.split('=').next().unwrap_or_default();
            assert!(
                ["PATH", "HOME", "TMPDIR", "LC_ALL", "PWD", "OLDPWD", "SHLVL", "_"].contains(&name),
                "{line}"
            );
        }
        assert!(lines.iter().any(|line| line == "LC_ALL=C"));
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(Step::Configure, clean("no-such-program-as-this"), |_| {}).expect_err("cannot start");
        assert!(error.to_string().contains("no-such-program-as-this"), "{error}");
    }
}
