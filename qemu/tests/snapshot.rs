//! What keeping and restoring machines leaves on the host, and what comes of a QEMU that dies on the way. What holds for every
//! backend is tested in `sandbox/tests/machines/`.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hayfork_vmm::backend::{Backend, Machine, Template};
use support::{Client, backend, is_alive, launch, spec};

fn restore(template: &Arc<dyn Template>) -> (Box<dyn Machine>, Client) {
    let mut machine = template.restore().unwrap();
    let client = Client::connect(&mut *machine);
    (machine, client)
}

/// A machine with a secret, and a template of it.
fn kept() -> (Box<dyn Machine>, Client, Arc<dyn Template>) {
    let mut machine = launch(&spec("serve"));
    let mut client = Client::connect(&mut *machine);
    client.text("keep the secret");
    let template = machine.capture().unwrap();
    (machine, client, template)
}

/// The memory that a restored machine's QEMU has been given, as it is now.
fn memory_of(machine: &dyn Machine) -> Vec<u8> {
    let folder = format!("/proc/{}/fd", machine.process_id().unwrap());
    let memory = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| {
            fs::read_link(path)
                .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:hayfork-template"))
        })
        .expect("it has one");
    let mut bytes = Vec::new();
    fs::File::open(memory).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
#[ignore = "needs the image set"]
fn clones_do_not_change_what_they_are_made_of() {
    let (original, client, template) = kept();
    let (one, mut first) = restore(&template);
    let before = memory_of(&*one);
    assert_eq!(before.len() as u64, template.ram());
    // Two at once, made at once, and both write more than the kernel does by itself.
    let mut clones: Vec<_> = std::thread::scope(|scope| {
        let made: Vec<_> = (0..2).map(|_| scope.spawn(|| restore(&template))).collect();
        made.into_iter().map(|clone| clone.join().unwrap()).collect()
    });
    for (number, (_, client)) in clones.iter_mut().enumerate() {
        client.text(&format!("keep {number}"));
        client.text("touch 20");
    }
    first.text("touch 10");
    drop((client, original));
    assert_eq!(first.text("kept"), "the secret");
    for (number, (machine, client)) in clones.iter_mut().enumerate() {
        assert_eq!(client.text("kept"), number.to_string());
        assert!(memory_of(&**machine) == before, "a clone has changed what all are made of");
    }
}

#[test]
#[ignore = "needs the image set"]
fn what_a_clone_costs_is_what_it_has_of_its_own() {
    let (_machine, _client, template) = kept();
    let (clone, mut client) = restore(&template);
    let before = clone.host_memory().unwrap();
    client.text("touch 30");
    let after = clone.host_memory().unwrap();
    println!("{before:?}, and after 30 MiB were touched {after:?}");
    let grown = after.guest - before.guest;
    assert!((30 << 20..40 << 20).contains(&grown), "{grown}");
    assert!(before.guest < 16 << 20, "{before:?}");
    assert!(after.overhead < 80 << 20, "{after:?}");
}

#[test]
#[ignore = "needs the image set"]
fn a_qemu_that_dies_while_its_machine_is_kept_gives_its_end_and_leaves_nothing() {
    let template = kept().2;
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let mut failed = 0;
    for round in 0..20u64 {
        let (machine, client) = restore(&template);
        let pid = machine.process_id().unwrap();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(round * round * 600));
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        });
        let start = Instant::now();
        let result = machine.capture();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        killer.join().unwrap();
        match result {
            // It was faster.
            Ok(template) => drop(template),
            Err(error) => {
                assert_eq!(error.code(), "vm_exited", "{error}");
                failed += 1;
            }
        }
        machine.wait(Some(Duration::from_secs(10))).expect("it is dead");
        let error = machine.capture().err().unwrap();
        assert_eq!(error.code(), "vm_exited", "{error}");
        drop((machine, client));
        assert!(!is_alive(pid));
    }
    println!("{failed} of 20 died before they were kept");
    assert!(failed > 3, "{failed}");
    assert_eq!(fs::read_dir("/proc/self/fd").unwrap().count(), descriptors);
    // The template is good.
    assert_eq!(restore(&template).1.text("kept"), "the secret");
}

#[test]
#[ignore = "needs the image set"]
fn restored_machines_leave_no_descriptor_thread_or_child_behind() {
    let (_original, _client, template) = kept();
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    let (descriptors, threads) = (count("/proc/self/fd"), count("/proc/self/task"));
    for _ in 0..6 {
        let (machine, client) = restore(&template);
        let again = machine.capture().unwrap();
        let (second, other) = restore(&again);
        drop((machine, client, again));
        drop((second, other));
    }
    assert_eq!((count("/proc/self/fd"), count("/proc/self/task")), (descriptors, threads));
}

/// What it takes, for the record: `cargo nextest run -p hayfork-qemu --run-ignored all times --no-capture`.
#[test]
#[ignore = "needs the image set"]
fn times() {
    let median = |mut all: Vec<Duration>| {
        all.sort_unstable();
        all[all.len() / 2]
    };
    let (original, mut client, template) = kept();
    let timed = |what: &str, each: &mut dyn FnMut()| {
        let all = (0..9)
            .map(|_| {
                let start = Instant::now();
                each();
                start.elapsed()
            })
            .collect();
        println!("{what}: {:?}", median(all));
    };
    timed("keep a launched machine", &mut || drop(original.capture().unwrap()));
    client.text("touch 64");
    timed("the same after 64 MiB were touched", &mut || drop(original.capture().unwrap()));
    timed("restore and kill", &mut || drop(template.restore().unwrap()));
    timed("restore, answer and kill", &mut || drop(restore(&template)));
    let (clone, mut client) = restore(&template);
    timed("keep a restored machine", &mut || drop(clone.capture().unwrap()));
    client.text("touch 64");
    timed("the same after 64 MiB were touched", &mut || drop(clone.capture().unwrap()));
    let start = Instant::now();
    let mut machine = backend().launch(&spec("serve")).unwrap();
    Client::connect(&mut *machine);
    println!("for comparison, boot and answer: {:?}", start.elapsed());
}
