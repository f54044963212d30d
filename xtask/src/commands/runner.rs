//! Runs a test runner under a deadline, shows what it prints, and keeps it to be counted.
//!
//! A test that never ends must cost its own layer and not the whole of CI, whatever the runner thinks of time limits: when
//! the time is over the runner is ended, what it had printed by then is counted, and the layer counts as failed.

use std::io::{BufRead as _, BufReader, PipeReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal};

/// How often the runner is looked after while it prints nothing.
const LOOK: Duration = Duration::from_millis(200);

/// How long a runner that was asked to end has for it, and how long output may follow the end of one: a process that a test
/// left behind holds the pipe open.
const GRACE: Duration = Duration::from_secs(10);

/// Lines that are read and not yet shown, at most: a runner that floods waits.
const AHEAD: usize = 1024;

/// How a runner came to its end.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Both of its streams, in the order of their lines.
    pub(crate) output: String,
    /// Whether it ended by itself, with status 0.
    pub(crate) success: bool,
    /// Whether it had to be ended.
    pub(crate) late: bool,
    /// How long it took.
    pub(crate) took: Duration,
}

/// Runs `command`, at most for `limit`.
///
/// # Errors
/// It cannot be started, or not be looked after.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Ran> {
    let began = Instant::now();
    // Both streams over one pipe, so that their lines keep their order.
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("cannot copy a descriptor")?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    // The command holds this side's copies of the writing end: they must go, or the end never comes.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let lines = lines(reader);
    let mut output = String::new();
    let status = follow(&mut child, &lines, began + limit, &mut output)?;
    let late = status.is_none();
    if late {
        end(&mut child)?;
        show(&lines, Instant::now() + LOOK, &mut output);
    }
    Ok(Ran { output, success: status.is_some_and(|status| status.success()), late, took: began.elapsed() })
}

/// The lines of the pipe as they come, read by a thread of its own: a read cannot be given up.
fn lines(reader: PipeReader) -> Receiver<String> {
    let (to, lines) = mpsc::sync_channel(AHEAD);
    thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n') {
            let Ok(line) = line else { break };
            if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    lines
}

/// Shows lines until the runner has ended and they have too. `None`: it was not done by `deadline`.
fn follow(
    child: &mut Child,
    lines: &Receiver<String>,
    deadline: Instant,
    output: &mut String,
) -> Result<Option<ExitStatus>> {
    loop {
        let ended = show(lines, deadline.min(Instant::now() + LOOK), output);
        if let Some(status) = child.try_wait().context("cannot wait for a test runner")? {
            if !ended {
                show(lines, Instant::now() + GRACE, output);
            }
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        if ended {
            thread::sleep(LOOK.min(deadline.saturating_duration_since(Instant::now())));
        }
    }
}

/// Shows lines until there are no more (`true`) or the time has come.
fn show(lines: &Receiver<String>, until: Instant, output: &mut String) -> bool {
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                println!("{line}");
                output.push_str(&line);
                output.push('\n');
            }
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => return true,
        }
        if Instant::now() >= until {
            return false;
        }
    }
}

/// Asks a runner to end, so that it can end its tests too, and makes it.
fn end(child: &mut Child) -> Result<()> {
    // The child has not been waited for, so this is still its number.
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, Signal::TERM);
    }
    let until = Instant::now() + GRACE;
    while Instant::now() < until {
        if child.try_wait().context("cannot wait for a test runner")?.is_some() {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    child.kill().context("cannot end a test runner")?;
    child.wait().context("cannot wait for a test runner")?;
    Ok(())
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
    fn what_is_printed_is_kept_in_its_order() {
        let ran = run(&mut shell("echo one; echo two >&2; printf three; exit 3"), GRACE).expect("runs");
        assert_eq!(ran.output, "one\ntwo\nthree\n");
        assert!(!ran.success && !ran.late);
        assert!(run(&mut shell("true"), GRACE).expect("runs").success);
    }

    #[test]
    fn one_that_does_not_end_is_ended_and_what_it_printed_is_kept() {
        let ran = run(&mut shell("echo begun; exec sleep 600"), Duration::from_millis(300)).expect("runs");
        assert_eq!(ran.output, "begun\n");
        assert!(!ran.success && ran.late);
        assert!(ran.took < Duration::from_secs(60));
    }

    #[test]
    fn one_that_floods_is_ended_too() {
        let ran = run(&mut shell("exec yes"), Duration::from_millis(50)).expect("runs");
        assert!(ran.late && ran.output.starts_with("y\n"));
    }

    #[test]
    fn a_process_left_behind_does_not_hold_the_end_up() {
        let ran = run(&mut shell("sleep 30 & echo $!"), Duration::from_secs(600)).expect("runs");
        let left = ran.output.trim().parse().ok().and_then(Pid::from_raw).expect("a process id");
        let _ = rustix::process::kill_process(left, Signal::KILL);
        assert!(ran.success && ran.took < Duration::from_secs(25), "{:?}", ran.took);
    }
}
