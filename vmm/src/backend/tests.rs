//! Limits, command line and the waiting that the trait itself does.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::*;

fn spec() -> MachineSpec {
    MachineSpec::new("/boot/vmlinux", "/boot/initramfs.cpio")
}

fn changed(change: impl FnOnce(&mut MachineSpec)) -> BackendError {
    let mut spec = spec();
    change(&mut spec);
    spec.validate().expect_err("the spec must be refused")
}

#[test]
fn defaults_and_limits_themselves_are_valid() {
    spec().validate().unwrap();
    let mut least = spec();
    least.memory_mib = MIN_MEMORY_MIB;
    least.linger = Duration::ZERO;
    least.name = String::from("a");
    least.validate().unwrap();
    let mut most = spec();
    most.memory_mib = MAX_MEMORY_MIB;
    most.vcpus = MAX_VCPUS;
    most.name = "n".repeat(MAX_NAME);
    most.extra_command_line = "x".repeat(MAX_COMMAND_LINE);
    most.linger = MAX_LINGER;
    most.console_bytes = MAX_CONSOLE_BYTES;
    most.validate().unwrap();
}

#[test]
fn each_limit_has_its_own_error() {
    let error = changed(|spec| spec.memory_mib = 1);
    assert_eq!(error.code(), "memory_too_small");
    assert!(matches!(error, BackendError::MemoryTooSmall { given: 1, minimum: MIN_MEMORY_MIB }));
    assert!(error.remedy().contains(&MIN_MEMORY_MIB.to_string()));

    let bad = |change: fn(&mut MachineSpec)| match changed(change) {
        BackendError::BadSpec(problem) => problem,
        other => panic!("expected BadSpec, got {other:?}"),
    };
    assert_eq!(
        bad(|spec| spec.memory_mib = MAX_MEMORY_MIB + 1),
        SpecError::MemoryTooLarge(MAX_MEMORY_MIB + 1)
    );
    assert_eq!(bad(|spec| spec.vcpus = 0), SpecError::Vcpus(0));
    assert_eq!(bad(|spec| spec.vcpus = MAX_VCPUS + 1), SpecError::Vcpus(MAX_VCPUS + 1));
    assert_eq!(bad(|spec| spec.name = String::new()), SpecError::Name(String::new()));
    assert_eq!(bad(|spec| spec.name = "a,b".into()), SpecError::Name("a,b".into()));
    assert!(matches!(bad(|spec| spec.name = "n".repeat(MAX_NAME + 1)), SpecError::Name(_)));
    assert!(matches!(bad(|spec| spec.linger = MAX_LINGER + Duration::from_nanos(1)), SpecError::Linger(_)));
    assert_eq!(bad(|spec| spec.extra_command_line = "a\nb".into()), SpecError::CommandLineCharacter);
    assert_eq!(bad(|spec| spec.extra_command_line = "ä".into()), SpecError::CommandLineCharacter);
    assert!(matches!(
        bad(|spec| spec.extra_command_line = "x".repeat(MAX_COMMAND_LINE + 1)),
        SpecError::CommandLineTooLong(_)
    ));
    assert_eq!(bad(|spec| spec.console_bytes = 0), SpecError::ConsoleBytes(0));
    assert_eq!(
        bad(|spec| spec.console_bytes = MAX_CONSOLE_BYTES + 1),
        SpecError::ConsoleBytes(MAX_CONSOLE_BYTES + 1)
    );
}

#[test]
fn the_command_line_tells_the_agent_what_it_needs() {
    let mut spec = spec();
    spec.linger = Duration::from_millis(1500);
    assert_eq!(
        spec.command_line("virtio-serial:org.hayfork.agent"),
        "quiet rcupdate.rcu_expedited=1 hayfork.carrier=virtio-serial:org.hayfork.agent hayfork.linger=2"
    );
    spec.root_image = Some("/images/python.erofs".into());
    spec.linger = Duration::ZERO;
    spec.console = ConsoleVerbosity::Verbose;
    spec.extra_command_line = "mitigations=off".into();
    assert_eq!(
        spec.command_line("vsock:1024"),
        "loglevel=7 rcupdate.rcu_expedited=1 hayfork.carrier=vsock:1024 hayfork.linger=0 hayfork.root=/dev/vda mitigations=off"
    );
}

/// A machine without a machine: exits when the other end of its socket is written to.
struct Fake {
    exit: UnixStream,
    report: Mutex<Option<ExitReport>>,
}

impl Machine for Fake {
    fn take_channel(&mut self) -> Option<Channel> {
        None
    }
    fn exit_fd(&self) -> BorrowedFd<'_> {
        self.exit.as_fd()
    }
    fn try_exit(&self) -> Option<ExitReport> {
        self.report.lock().unwrap().clone()
    }
    fn console_tail(&self) -> String {
        "the console".into()
    }
    fn kill(&mut self) -> Result<ExitReport, BackendError> {
        Err(BackendError::ForkedProcess)
    }
    fn host_memory(&self) -> Option<HostMemory> {
        None
    }
    fn process_id(&self) -> Option<u32> {
        None
    }
    fn place(&self) -> Place {
        Place::ThisProcess
    }
}

fn report(kind: ExitKind) -> ExitReport {
    ExitReport {
        kind,
        status: ProcessStatus::Code(1),
        console_tail: "the console".into(),
        stderr_tail: "the errors".into(),
    }
}

#[test]
fn waiting_ends_by_timeout_or_by_exit() {
    let (mut guest, exit) = UnixStream::pair().unwrap();
    let fake = Fake { exit, report: Mutex::new(None) };
    let start = Instant::now();
    assert_eq!(fake.wait(Some(Duration::from_millis(30))), None);
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(matches!(fake.boot_failure(Duration::from_secs(2)), BackendError::BootTimeout { .. }));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fake.wait(None));
        *fake.report.lock().unwrap() = Some(report(ExitKind::Crashed));
        guest.write_all(b"x").unwrap();
        assert_eq!(waiting.join().unwrap(), Some(report(ExitKind::Crashed)));
    });
    assert_eq!(fake.boot_failure(Duration::from_secs(2)).code(), "vm_exited");
}

#[test]
fn an_exit_becomes_the_error_that_names_its_cause() {
    let message = report(ExitKind::Crashed).into_error().to_string();
    assert!(message.contains("exit code 1") && message.contains("the errors"), "{message}");
    let message = report(ExitKind::Panic).into_error().to_string();
    assert!(message.contains("panicked") && message.contains("the console"), "{message}");
    assert_eq!(report(ExitKind::PowerOff).into_error().code(), "guest_powered_off");
    assert_eq!(report(ExitKind::Killed).into_error().code(), "vm_killed");
}
