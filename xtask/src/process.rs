//! Other programs, run so that a failure says which program failed, how, and what it printed last.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{ChildStdout, Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, anyhow};

/// Lines of a failed program's standard error that its error message repeats.
const TAIL_LINES: usize = 25;

/// Runs a program to its end and gives its standard output.
///
/// # Errors
/// The program cannot be started, exits with another status than 0, or prints something else than UTF-8.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    stream(
        command,
        |mut stdout| {
            let mut text = String::new();
            stdout.read_to_string(&mut text)?;
            Ok(text)
        },
        |_| {},
    )
}

/// Runs a program; `consume` reads its standard output while `on_line` sees each line of its standard
/// error. Standard input is empty. If both fail, the program's own error is the one reported, since the
/// other is most often its consequence.
///
/// # Errors
/// As [`output`], or what `consume` reports.
pub(crate) fn stream<T>(
    command: &mut Command,
    consume: impl FnOnce(ChildStdout) -> Result<T>,
    on_line: impl FnMut(&str) + Send,
) -> Result<T> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let pipes = child.stdout.take().zip(child.stderr.take());
    let (stdout, stderr) = pipes.ok_or_else(|| anyhow!("{name} was started without pipes"))?;
    let (consumed, tail) = thread::scope(|scope| {
        let reader = scope.spawn(|| read_lines(stderr, on_line));
        let consumed = consume(stdout);
        (consumed, reader.join().unwrap_or_default())
    });
    let status = child.wait().with_context(|| format!("cannot wait for {name}"))?;
    if !status.success() {
        let tail = if tail.is_empty() { String::new() } else { format!("; it printed last:\n{tail}") };
        return Err(anyhow!("{name} failed ({status}){tail}"));
    }
    consumed.with_context(|| format!("cannot use the output of {name}"))
}

/// Hands each line on and gives back the last ones, joined. Bytes that are not UTF-8 are replaced.
fn read_lines(from: impl Read, mut on_line: impl FnMut(&str)) -> String {
    let mut reader = BufReader::new(from);
    let mut tail: VecDeque<String> = VecDeque::with_capacity(TAIL_LINES);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        on_line(text);
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(format!("    {text}"));
    }
    Vec::from(tail).join("\n")
}

/// Whether `program` is found by PATH or in the administrator's directories, which a user's PATH
/// often lacks.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_given_and_lines_are_seen() {
        let mut lines = Vec::new();
        let text = stream(
            &mut shell("echo one >&2; printf out; printf two >&2"),
            |mut stdout| {
                let mut text = String::new();
                stdout.read_to_string(&mut text)?;
                Ok(text)
            },
            |line| lines.push(line.to_owned()),
        );
        assert_eq!(text.expect("runs"), "out");
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn a_failure_names_program_status_and_last_lines() {
        let error =
            output(&mut shell("for i in $(seq 100); do echo line $i >&2; done; exit 3")).expect_err("fails");
        let text = format!("{error:#}");
        assert!(text.contains("sh failed (exit status: 3)"), "{text}");
        assert!(text.contains("line 100") && text.contains("line 76") && !text.contains("line 75"), "{text}");
    }

    #[test]
    fn the_programs_error_comes_before_the_readers() {
        let error =
            stream(&mut shell("echo broken >&2; exit 1"), |_| Err::<(), _>(anyhow!("no archive")), |_| {})
                .expect_err("fails");
        assert!(format!("{error:#}").contains("broken"));
        let error =
            stream(&mut shell("exit 0"), |_| Err::<(), _>(anyhow!("no archive")), |_| {}).expect_err("fails");
        assert!(format!("{error:#}").contains("no archive"));
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = output(&mut Command::new("hayfork-no-such-program")).expect_err("missing");
        assert!(format!("{error:#}").contains("hayfork-no-such-program"));
        assert!(!exists("hayfork-no-such-program"));
        assert!(exists("sh"));
    }
}
