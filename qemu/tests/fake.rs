//! What the backend makes of a QEMU that fails, played by shell scripts. No images and no QEMU needed.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hayfork_qemu::{AcceleratorChoice, Qemu, QemuOptions};
use hayfork_vmm::backend::{Backend, BackendError, ExitKind, Machine, MachineSpec, ProcessStatus};
use tempfile::TempDir;

/// A folder with a script that answers `--version` as QEMU does and otherwise runs `script`, and files that pass for
/// images.
struct Fake {
    folder: TempDir,
    backend: Qemu,
}

fn fake(script: &str) -> Fake {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("qemu");
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && {{ echo QEMU emulator version 9.9.9; exit; }}\n{script}\n"
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.path().join("vmlinux"), b"\x7fELF").unwrap();
    fs::write(folder.path().join("initramfs"), b"070701").unwrap();
    let options =
        QemuOptions { binary: Some(path), accelerator: AcceleratorChoice::Tcg, ..QemuOptions::default() };
    Fake { folder, backend: Qemu::new(options) }
}

impl Fake {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn launch(&self) -> Result<Box<dyn Machine>, BackendError> {
        self.backend.launch(&MachineSpec::new(self.path("vmlinux"), self.path("initramfs")))
    }

    /// The machine's end, which comes by itself.
    fn ended(&self) -> (Box<dyn Machine>, BackendError) {
        let machine = self.launch().unwrap();
        machine.wait(Some(Duration::from_secs(20))).expect("the script ends");
        let error = machine.boot_failure(Duration::ZERO);
        (machine, error)
    }
}

#[test]
fn a_qemu_that_cannot_do_what_is_needed_is_unusable() {
    let fake = fake("echo 'qemu: unsupported machine type' >&2; exit 1");
    let (machine, error) = fake.ended();
    assert_eq!(error.code(), "qemu_unusable");
    assert!(error.to_string().contains("microvm"), "{error}");
    let report = machine.try_exit().unwrap();
    assert_eq!((report.kind, report.status), (ExitKind::Crashed, ProcessStatus::Code(1)));
    assert_eq!(report.stderr_tail, "qemu: unsupported machine type\n");
}

#[test]
fn a_failing_qemu_is_quoted() {
    let (_, error) = fake("echo 'cannot set up guest memory: Cannot allocate memory' >&2; exit 1").ended();
    assert_eq!(error.code(), "vm_exited");
    let message = error.to_string();
    assert!(message.contains("exit code 1") && message.contains("Cannot allocate memory"), "{message}");
    let (machine, error) = fake("kill -ABRT $$").ended();
    assert_eq!(error.code(), "vm_exited");
    assert_eq!(machine.try_exit().unwrap().status, ProcessStatus::Signal(6));
}

#[test]
fn the_console_tells_a_panic_from_a_power_off() {
    let (machine, error) = fake("echo '[    0.9] reboot: Restarting system'").ended();
    assert_eq!(error.code(), "guest_powered_off");
    assert_eq!(machine.console_tail(), "[    0.9] reboot: Restarting system\n");
    let (_, error) = fake("printf '[    0.9] Kernel panic - not syncing: VFS: no root'").ended();
    assert_eq!(error.code(), "kernel_panic");
    assert!(error.to_string().ends_with("VFS: no root"), "{error}");
}

#[test]
fn all_output_is_there_when_the_end_is_reported() {
    // More than a pipe holds, and written in one go at the very end.
    let (machine, _) =
        fake("i=0; while [ $i -lt 3000 ]; do echo \"a line of output, number $i\"; i=$((i+1)); done").ended();
    let tail = machine.try_exit().unwrap().console_tail;
    assert!(tail.ends_with("number 2999\n"), "{tail}");
    assert!(tail.len() <= hayfork_vmm::backend::DEFAULT_CONSOLE_BYTES);
    assert!(!tail.contains("number 5\n"));
}

#[test]
fn closed_outputs_are_no_end() {
    let fake = fake("exec >&- 2>&-; exec sleep 60");
    let mut machine = fake.launch().unwrap();
    assert_eq!(machine.wait(Some(Duration::from_millis(200))), None);
    assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed);
}

#[test]
fn a_descendant_that_keeps_the_outputs_does_not_delay_the_end() {
    let start = Instant::now();
    let fake = fake("sleep 30 & echo $!; exit 0");
    let (machine, error) = fake.ended();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(error.code(), "guest_powered_off");
    // QEMU may start no process (its seccomp filter); this one is the test's to end.
    let pid: i32 = machine.console_tail().trim().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}

#[test]
fn nothing_talks_its_way_out_of_being_killed() {
    let fake = fake("trap '' TERM INT HUP; echo ready; while :; do sleep 1; done");
    let machine = fake.launch().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !machine.console_tail().contains("ready") {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = machine.process_id().unwrap();
    drop(machine);
    assert!(!fs::exists(format!("/proc/{pid}")).unwrap());
}

#[test]
fn a_binary_that_vanishes_after_the_check_is_a_failed_start() {
    let fake = fake("exit 0");
    fake.backend.check().unwrap();
    fs::remove_file(fake.path("qemu")).unwrap();
    let error = fake.launch().err().unwrap();
    assert_eq!(error.code(), "spawn_failed");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("No such file"), "{cause}");
}

#[test]
fn a_failed_check_is_made_again() {
    let fake = fake("exit 0");
    let aside = fake.path("aside");
    fs::rename(fake.path("qemu"), &aside).unwrap();
    assert_eq!(fake.backend.check().unwrap_err().code(), "qemu_missing");
    fs::rename(&aside, fake.path("qemu")).unwrap();
    assert!(fake.backend.check().unwrap().description.contains("9.9.9"));
}

#[test]
fn machines_may_be_launched_from_many_threads() {
    let fake = fake("exec sleep 60");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut machine = fake.launch().unwrap();
                assert_eq!(machine.try_exit(), None);
                assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed);
            });
        }
    });
}

#[test]
fn the_arguments_arrive_as_they_are() {
    let fake = fake("for argument in \"$@\"; do printf '%s\\n' \"$argument\"; done");
    let (machine, _) = fake.ended();
    let console = machine.console_tail();
    let lines: Vec<&str> = console.lines().collect();
    assert_eq!(lines[..2], ["-name", "hayfork"]);
    assert!(
        lines.iter().any(|line| line.starts_with("memory-backend-file,id=ram,mem-path=/proc/self/fd/")),
        "{console}"
    );
}

/// A QEMU that is told to keep its machine and does `then` instead, in which `say` sends a line over the control channel. Only bash
/// takes descriptors beyond 9.
fn kept_by(then: &str) -> BackendError {
    let script = format!(
        r#"exec bash -s -- "$@" <<'END'
for argument in "$@"; do case $argument in socket,id=control,fd=*) control=${{argument##*=}};; esac; done
say() {{ printf '%s\n' "$1" >&$control; }}
say '{{"QMP": {{}}}}'
{then}
END
"#
    );
    let fake = fake(&script);
    let machine = fake.launch().unwrap();
    machine.capture().err().expect("there is nothing to keep")
}

#[test]
fn a_qemu_that_does_not_keep_its_machine_is_told_apart() {
    // It ends.
    let error = kept_by("echo 'out of luck' >&2; exit 3");
    assert_eq!(error.code(), "vm_exited");
    assert!(error.to_string().contains("out of luck"), "{error}");
    // It refuses.
    let refusal = r#"{"error": {"class": "CommandNotFound", "desc": "The command stop has not been found"}}"#;
    let error =
        kept_by(&format!(r#"say '{{"return": {{}}}}'; say '{refusal}'; say '{refusal}'; exec sleep 20"#));
    assert_eq!(error.code(), "qemu_unusable");
    assert!(error.to_string().contains("has not been found"), "{error}");
    // It talks nonsense.
    let error = kept_by("say 'hello'; say 'world'; exec sleep 20");
    assert_eq!(error.code(), "qemu_unusable");
}
