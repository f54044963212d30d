//! What running guests leaves on the host: nothing, however this process ends. What holds for every backend is tested in
//! `sandbox/tests/machines/`.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hayfork_qemu::{Qemu, QemuOptions};
use hayfork_vmm::backend::{Backend, ExitKind};
use support::{BOOT_TIME, Client, backend, is_alive, launch, spec, wait_until};

/// Set in the copy of a test that plays the program which is killed.
const ROLE: &str = "HAYFORK_TEST_ROLE";

/// This test program again, running only `test`, as the one that is killed; and the QEMU it has started.
fn victim(test: &str) -> (std::process::Child, u32) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(ROLE, "victim")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let pid = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("QEMU is ")?.1.trim().parse().ok())
        .expect("the victim says its QEMU's process id");
    (child, pid)
}

/// What the victim does: starts a guest, says its process, waits to be killed.
fn play_victim(until_up: bool) -> ! {
    let mut machine = launch(&spec("serve"));
    let client = until_up.then(|| Client::connect(&mut *machine));
    println!("\nQEMU is {}", machine.process_id().unwrap());
    std::thread::sleep(Duration::from_secs(120));
    drop((client, machine));
    panic!("nobody killed the victim");
}

fn sigkill(child: &mut std::process::Child) -> Instant {
    child.kill().unwrap();
    let start = Instant::now();
    child.wait().unwrap();
    start
}

#[test]
#[ignore = "needs the image set"]
fn sigkill_of_this_process_leaves_no_qemu() {
    const TEST: &str = "sigkill_of_this_process_leaves_no_qemu";
    if std::env::var_os(ROLE).is_some() {
        play_victim(true);
    }
    let (mut child, pid) = victim(TEST);
    assert!(is_alive(pid));
    let start = sigkill(&mut child);
    wait_until(Duration::from_secs(1), "the end of QEMU", || !is_alive(pid));
    println!("QEMU was gone {:?} after SIGKILL", start.elapsed());
}

#[test]
#[ignore = "needs the image set"]
fn sigkill_while_booting_leaves_no_qemu() {
    const TEST: &str = "sigkill_while_booting_leaves_no_qemu";
    if std::env::var_os(ROLE).is_some() {
        play_victim(false);
    }
    let (mut child, pid) = victim(TEST);
    sigkill(&mut child);
    wait_until(Duration::from_secs(1), "the end of QEMU", || !is_alive(pid));
}

#[test]
#[ignore = "needs the image set"]
fn qemu_has_nothing_of_this_process_and_few_rights() {
    // Something that would be inherited if nothing were done about it.
    let leak = fs::File::open("/etc/hostname").unwrap();
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
    let mut machine = launch(&spec("serve"));
    let _client = Client::connect(&mut *machine);
    let proc = format!("/proc/{}", machine.process_id().unwrap());

    let environment = fs::read(format!("{proc}/environ")).unwrap();
    assert!(environment.is_empty(), "{}", String::from_utf8_lossy(&environment));
    assert_eq!(fs::read_link(format!("{proc}/cwd")).unwrap(), Path::new("/"));
    let status = fs::read_to_string(format!("{proc}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(field("Seccomp:"), "2", "a filter is on");
    let limits = fs::read_to_string(format!("{proc}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");

    let open: Vec<String> = fs::read_dir(format!("{proc}/fd"))
        .unwrap()
        .map(|entry| fs::read_link(entry.unwrap().path()).unwrap().display().to_string())
        .collect();
    assert!(!open.iter().any(|file| file == "/etc/hostname"), "{open:?}");
    // Guest memory has no name in a file system.
    assert!(open.iter().any(|file| file.starts_with("/memfd:hayfork-ram")), "{open:?}");
    let own = [spec("serve").kernel, spec("serve").initramfs, "/dev/null".into()];
    for file in open.iter().filter(|file| file.starts_with('/') && !file.starts_with("/memfd:")) {
        let file = fs::canonicalize(file).unwrap();
        assert!(own.iter().any(|own| fs::canonicalize(own).unwrap() == file), "{file:?} in {open:?}");
    }
}

fn count(folder: &str) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
#[ignore = "needs the image set"]
fn machines_leave_no_descriptor_thread_or_child_behind() {
    // The first makes the spawner thread, which stays.
    let backend = backend();
    drop(backend.launch(&spec("serve")).unwrap());
    let (descriptors, threads) = (count("/proc/self/fd"), count("/proc/self/task"));
    for round in 0..6 {
        let mut machine = backend.launch(&spec("serve")).unwrap();
        let pid = machine.process_id().unwrap();
        if round % 2 == 0 {
            machine.kill().unwrap();
        }
        drop(machine);
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "its status was collected");
    }
    // A launch that fails leaves nothing either.
    let mut bad = spec("serve");
    bad.root_image = Some("/nonexistent/root.erofs".into());
    assert_eq!(backend.launch(&bad).err().unwrap().code(), "image_unreadable");
    assert_eq!((count("/proc/self/fd"), count("/proc/self/task")), (descriptors, threads));
    let children = fs::read_to_string(format!("/proc/self/task/{0}/children", std::process::id())).unwrap();
    assert_eq!(children.trim(), "");
}

/// Other code in the program may collect every child, or ignore SIGCHLD: then the status is unknown, and nothing hangs.
#[test]
#[ignore = "needs the image set"]
#[allow(unsafe_code)]
fn a_status_that_somebody_else_collects_is_unknown_and_no_more() {
    // Compiling the guest, at its first use, needs to hear of its own children.
    let (serve, power_off) = (spec("serve"), spec("power-off"));
    // SAFETY: no handler is installed, the signal is ignored. Nextest gives each test a process of its own.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let mut machine = launch(&serve);
    let _client = Client::connect(&mut *machine);
    let report = machine.kill().unwrap();
    assert_eq!(report.kind, ExitKind::Killed);
    let machine = launch(&power_off);
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest powers off");
    assert_eq!(report.kind, ExitKind::PowerOff, "{report:?}");
}

/// The check finds what is here, and chooses no /dev/kvm that only looks like one.
#[test]
#[ignore = "needs the image set"]
fn the_check_says_what_machines_will_run_on() {
    let capabilities = Qemu::new(QemuOptions::default()).check().unwrap();
    println!("{capabilities:?}");
    assert!(capabilities.description.starts_with("QEMU "));
    let hardware = hayfork_vmm::hypervisor::probe::verdict().is_hardware();
    assert_eq!(capabilities.accelerator == hayfork_vmm::backend::Accelerator::Kvm, hardware);
    assert_eq!(capabilities.notes.is_empty(), hardware);
}

/// Launching must not need anything from a file system but the images.
#[test]
#[ignore = "needs the image set"]
fn nothing_is_written_to_the_temporary_folder() {
    let folder = tempfile::tempdir().unwrap();
    if std::env::var_os(ROLE).is_none() {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "nothing_is_written_to_the_temporary_folder", "--ignored"])
            .env(ROLE, "inner")
            .env("TMPDIR", folder.path())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        // The inner test has removed its own folder.
        assert_eq!(count(folder.path().to_str().unwrap()), 0);
        return;
    }
    let changed = fs::metadata(std::env::temp_dir()).unwrap().mtime_nsec();
    let mut machine = launch(&spec("serve"));
    let _client = Client::connect(&mut *machine);
    assert_eq!(fs::metadata(std::env::temp_dir()).unwrap().mtime_nsec(), changed);
}
