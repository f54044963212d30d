//! How owners and workers come to their ends, with guests of a few instructions.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hayfork_vmm::backend::{Backend, BackendError, ExitKind, Machine, Place, ProcessStatus};
use hayfork_vmm::worker::{Workers, WorkersOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::process::{Pid, Signal, kill_process};

use crate::fake;
use crate::host::{Holdings, alone, wait_for};
use crate::tiny::{Act, Host, Script};

const PATIENCE: Duration = Duration::from_secs(20);

fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_hayfork-worker").into()
}

fn workers_of(binary: PathBuf) -> Workers {
    Workers::new(WorkersOptions { binary: Some(binary) })
}

/// A guest that goes on saying something.
fn beats() -> Script {
    Script::saying("beat\n", &[Act::Spin { times: 3000 }, Act::Repeat { from: 0, times: 0 }])
}

/// A guest that says this and ends.
fn says() -> Script {
    Script::saying("said\n", &[Act::Reset])
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !matches!(stat.rsplit(')').next().unwrap().trim().chars().next(), Some('Z' | 'X')))
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

fn is_readable(machine: &dyn Machine) -> bool {
    let end = machine.exit_fd();
    poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn a_guest_runs_in_a_process_of_its_own_and_says_how_it_ended() {
    let Some(host) = Host::new() else { return };
    let workers = workers_of(program());
    assert_eq!(workers.check().unwrap().place, Place::Worker);
    let machine = workers.launch(&host.spec("kernel", &says())).unwrap();
    let pid = machine.process_id().unwrap();
    assert_ne!(pid, std::process::id());
    let report = machine.wait(Some(PATIENCE)).expect("it ends");
    assert_eq!((report.kind, report.status), (ExitKind::PowerOff, ProcessStatus::None), "{report:?}");
    assert_eq!(report.console_tail, "said\n");
    assert!(is_readable(&*machine), "and it stays so");
    assert_eq!(machine.try_exit().unwrap(), report);
    drop(machine);
    assert!(!is_alive(pid));
}

#[test]
fn a_worker_is_confined_when_it_gets_its_machine() {
    let Some(host) = Host::new() else { return };
    let workers = workers_of(program());
    let spec = host.spec("kernel", &beats());
    let machine = workers.launch(&spec).unwrap();
    let pid = machine.process_id().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.split(':').next() == Some(name));
        line.unwrap_or_else(|| panic!("{name} in {status}")).split_once(':').unwrap().1.trim().to_owned()
    };
    assert_eq!((field("Seccomp").as_str(), field("NoNewPrivs").as_str()), ("2", "1"));
    // Two for making it, one for letting it run.
    assert_eq!(field("Seccomp_filters"), "3");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&field(set), 16).unwrap(), 0, "{set}");
    }
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!((limit("Max core file size"), limit("Max open files")), ("0".into(), "256".into()));
    assert!(limit("Max address space").parse::<u64>().unwrap() < 8 << 30);
    let ram = u64::from(spec.memory_mib) << 20;
    assert_eq!(limit("Max file size").parse::<u64>().unwrap(), ram.max(56 << 20));
    // What belongs to root is what nobody else can look into.
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{pid}/mem")).unwrap());
    assert_eq!(owner, 0, "it is not dumpable");
    println!("{:?}", workers.confinement());
}

#[test]
fn a_worker_s_death_ends_its_machine_and_no_other() {
    let Some(host) = Host::new() else { return };
    let workers = workers_of(program());
    let spec = host.spec("kernel", &beats());
    let (one, mut other) = (workers.launch(&spec).unwrap(), workers.launch(&spec).unwrap());
    wait_for(PATIENCE, "a beat", || one.console_tail().contains("beat"));
    signal(one.process_id().unwrap(), Signal::KILL);
    let report = one.wait(Some(PATIENCE)).expect("it ends");
    assert_eq!((report.kind, report.status), (ExitKind::Crashed, ProcessStatus::Signal(9)));
    assert!(report.console_tail.contains("beat"), "what it said last was asked for before");
    assert_eq!(one.boot_failure(Duration::ZERO).code(), "vm_exited");
    assert_eq!(one.capture().err().unwrap().code(), "vm_exited");
    assert!(one.host_memory().is_none() && one.working_set().is_empty() && one.process_id().is_none());
    let beats = other.console_tail().len();
    wait_for(PATIENCE, "a beat of the other", || other.console_tail().len() > beats);
    assert_eq!(other.kill().unwrap().kind, ExitKind::Killed);
    drop(workers.launch(&spec).unwrap());
}

#[test]
fn a_forbidden_call_of_a_worker_is_its_end_and_is_named() {
    let Some(host) = Host::new() else { return };
    let workers = workers_of(program());
    let machine = workers.launch(&host.spec("kernel", &beats())).unwrap();
    // The signal of a filter, from somebody else.
    signal(machine.process_id().unwrap(), Signal::SYS);
    let report = machine.wait(Some(PATIENCE)).expect("it ends");
    assert_eq!(report.status, ProcessStatus::Signal(libc::SIGSYS));
    assert!(report.into_error().to_string().contains("signal 31"));
}

#[test]
fn a_stopped_worker_is_killed_all_the_same() {
    let Some(host) = Host::new() else { return };
    let workers = workers_of(program());
    let mut machine = workers.launch(&host.spec("kernel", &beats())).unwrap();
    let pid = machine.process_id().unwrap();
    signal(pid, Signal::STOP);
    let start = Instant::now();
    assert_eq!(machine.kill().unwrap().status, ProcessStatus::Signal(9));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(!is_alive(pid));
}

#[test]
fn a_spare_worker_that_died_is_replaced() {
    let Some(host) = Host::new() else { return };
    let children = || {
        let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.to_owned();
            (parent == std::process::id().to_string() && stat.contains("(hayfork-worker)")).then_some(pid)
        });
        all.collect::<Vec<u32>>()
    };
    alone("life::a_spare_worker_that_died_is_replaced", || {
        let workers = workers_of(program());
        workers.check().unwrap();
        let [spare] = children()[..] else { panic!("{:?}", children()) };
        signal(spare, Signal::KILL);
        wait_for(PATIENCE, "its end", || !is_alive(spare));
        let machine = workers.launch(&host.spec("kernel", &says())).unwrap();
        assert_eq!(machine.wait(Some(PATIENCE)).expect("it ends").kind, ExitKind::PowerOff);
    });
}

/// The owner of a worker, killed at once: `life::an_owner` in a process of its own.
#[test]
fn the_owner_s_sudden_death_leaves_no_worker() {
    if Host::new().is_none() {
        return;
    }
    for _ in 0..3 {
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "life::an_owner", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
        let pids = lines.find_map(|line| line.unwrap().strip_prefix("workers ").map(str::to_owned)).unwrap();
        let pids: Vec<u32> = pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(pids.len(), 3);
        assert!(pids.iter().all(|pid| is_alive(*pid)));
        owner.kill().unwrap();
        owner.wait().unwrap();
        wait_for(PATIENCE, "the end of all workers", || !pids.iter().any(|pid| is_alive(*pid)));
    }
}

#[test]
#[ignore = "a part of the_owner_s_sudden_death_leaves_no_worker"]
fn an_owner() {
    let Some(host) = Host::new() else { return };
    let workers = workers_of(program());
    let spec = host.spec("kernel", &beats());
    let machines: Vec<_> = (0..3).map(|_| workers.launch(&spec).unwrap()).collect();
    let pids: Vec<_> = machines.iter().map(|machine| machine.process_id().unwrap().to_string()).collect();
    println!("workers {}", pids.join(" "));
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn many_lives_leave_nothing_behind() {
    alone("life::many_lives_leave_nothing_behind", || {
        let Some(host) = Host::new() else { return };
        let workers = workers_of(program());
        let spec = host.spec("kernel", &beats());
        let ending = host.spec("ending", &says());
        let one_life = |number: u8| {
            let mut machine = workers.launch(if number.is_multiple_of(2) { &spec } else { &ending }).unwrap();
            match number % 4 {
                0 => drop(machine),
                2 => assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed),
                _ => assert_eq!(machine.wait(Some(PATIENCE)).expect("it ends").kind, ExitKind::PowerOff),
            }
        };
        let settle = || {
            // The next spare one is there, and the thread that made it is gone.
            wait_for(PATIENCE, "quiet", || {
                !crate::host::thread_names().iter().any(|name| name.starts_with("hayfork-worker"))
            });
        };
        (0..4).for_each(one_life);
        settle();
        let before = Holdings::now();
        (0..24).for_each(one_life);
        settle();
        let after = Holdings::now();
        println!("{before:?} then {after:?}");
        after.check_against(&before);
    });
}

#[test]
fn what_is_no_worker_is_refused() {
    let Some(_) = Host::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (binary, part) in [
        (PathBuf::from("/bin/true"), "ended with exit code 0"),
        (PathBuf::from("/bin/ls"), "exit code 2: "),
        (fake::program(folder.path(), "silent-death"), "exit code 3"),
        (fake::program(folder.path(), "old"), "of version 0.0.1\u{fffd}[31m"),
        (fake::program(folder.path(), "babbler"), "sent what is no message"),
    ] {
        let error = workers_of(binary.clone()).check().unwrap_err();
        assert_eq!(error.code(), "worker_unusable", "{binary:?}: {error}");
        let message = error.to_string();
        assert!(message.contains(part) && message.contains(binary.to_str().unwrap()), "{message}");
    }
    let error = workers_of("/nonexistent/worker".into()).check().unwrap_err();
    assert_eq!(error.code(), "worker_missing");
}

#[test]
fn a_worker_that_a_guest_has_taken_over_gets_nowhere() {
    let Some(host) = Host::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let spec = host.spec("kernel", &beats());
    let launch = |role| workers_of(fake::program(folder.path(), role)).launch(&spec);
    for (role, code) in [("own-sockets", "worker_lost"), ("nonsense", "worker_lost"), ("death", "vm_exited")]
    {
        let error = launch(role).err().unwrap();
        assert_eq!(error.code(), code, "{role}: {error}");
    }
    let machine = launch("bad-end").unwrap();
    let report = machine.wait(Some(PATIENCE)).expect("it ends");
    assert_eq!(report.kind, ExitKind::Crashed);
    assert!(report.stderr_tail.contains("no message"), "{report:?}");

    for role in ["bad-ranges", "bad-answer"] {
        let machine = launch(role).unwrap();
        let pid = machine.process_id().unwrap();
        assert!(machine.working_set().is_empty(), "{role}");
        let report = machine.wait(Some(PATIENCE)).expect("it was killed");
        assert_eq!(report.kind, ExitKind::Crashed, "{role}");
        assert!(!is_alive(pid), "{role}");
        // Whatever is asked of it from here on has that answer.
        assert_eq!(machine.console_tail(), "");
    }
    // The owner's descriptors are none that the worker has, so nothing that it does to its own makes the owner wait.
    let mut machine = launch("flags").unwrap();
    let channel = machine.take_channel().unwrap();
    channel.set_nonblocking(true).unwrap();
    assert_eq!(machine.console_tail(), "done");
    for descriptor in [channel.as_fd(), machine.exit_fd()] {
        assert!(fcntl_getfl(descriptor).unwrap().contains(OFlags::NONBLOCK));
    }
    drop(machine);

    let machine = launch("bad-template").unwrap();
    assert!(matches!(machine.capture().err(), Some(BackendError::WorkerLost { .. })));
    // One that does not answer does not hold up its end.
    let mut machine = launch("mute").unwrap();
    let start = Instant::now();
    assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
