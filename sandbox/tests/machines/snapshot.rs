//! Machines that go on where another stood.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hayfork_vmm::backend::{BackendError, ExitKind, ImageDigests, Machine, MachineSpec, Template};

use crate::guest::{self, BOOT_TIME, Client};
use crate::setup::{Setup, on_backends};

on_backends! {
    a_clone_knows_what_the_original_knew_and_neither_disturbs_the_other: qemu qemu_2_vcpus monitor monitor_2_vcpus worker worker_2_vcpus;
    many_clones_live_at_once: qemu monitor worker;
    no_time_has_passed_for_a_clone: qemu qemu_2_vcpus monitor monitor_2_vcpus worker worker_2_vcpus;
    a_machine_that_was_begun_ahead_is_like_any_other: qemu monitor monitor_2_vcpus worker;
    generations_of_clones: qemu qemu_2_vcpus monitor monitor_2_vcpus worker worker_2_vcpus;
    a_guest_is_kept_in_the_midst_of_its_work: qemu qemu_2_vcpus monitor monitor_2_vcpus worker worker_2_vcpus;
    a_machine_that_has_ended_cannot_be_kept: qemu monitor worker;
    pages_that_are_made_ahead_are_those_that_a_clone_uses: monitor worker;
    a_saved_machine_goes_on_in_another_process: qemu qemu_2_vcpus monitor monitor_2_vcpus worker;
    a_clone_s_clone_is_saved_whole: qemu monitor worker;
    a_damaged_file_gives_no_machine: qemu monitor worker;
    a_file_of_other_images_gives_no_machine: qemu monitor worker;
    a_spent_machine_is_made_new_in_its_place: monitor monitor_2_vcpus;
}

pub(crate) fn restore(template: &Arc<dyn Template>) -> (Box<dyn Machine>, Client) {
    let mut machine = template.restore().unwrap();
    let client = Client::connect(&mut *machine);
    (machine, client)
}

fn a_clone_knows_what_the_original_knew_and_neither_disturbs_the_other(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    client.text("keep the secret");
    let template = original.capture().unwrap();
    assert_eq!(client.text("kept"), "the secret");
    client.text("keep something else");

    let (_one, mut first) = restore(&template);
    assert_eq!(first.text("kept"), "the secret");
    first.text("keep mine");
    let (_two, mut second) = restore(&template);
    assert_eq!(second.text("kept"), "the secret");
    // Devices work on: a lot over vsock both ways, the disk's absence, the console's sink.
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| u8::try_from(n % 249).unwrap()).collect();
    let sum: u64 = bytes.iter().copied().map(u64::from).sum();
    assert_eq!(first.put(&bytes), sum.to_string());
    assert_eq!(first.ask("get 2000000").unwrap().len(), 2_000_000);
    assert_eq!(first.text("kept"), "mine");
    assert_eq!(client.text("kept"), "something else");
    // The template needs the original no more.
    drop((client, original));
    let (_three, mut third) = restore(&template);
    assert_eq!(third.text("kept"), "the secret");
}

fn many_clones_live_at_once(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    client.text("keep root");
    let template = original.capture().unwrap();
    let mut clones: Vec<_> = (0..20).map(|_| restore(&template)).collect();
    for (number, (_, client)) in clones.iter_mut().enumerate() {
        assert_eq!(client.text("kept"), "root");
        client.text(&format!("keep {number}"));
    }
    for (number, (_, client)) in clones.iter_mut().enumerate() {
        assert_eq!(client.text("kept"), number.to_string());
    }
}

fn a_machine_that_was_begun_ahead_is_like_any_other(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    client.text("keep root");
    let at: u64 = client.text("monotonic").parse().unwrap();
    let template = original.capture().unwrap();
    for round in 0..3 {
        template.prepare().unwrap();
        // There is one already.
        template.prepare().unwrap();
        let pause = Duration::from_millis(1500);
        std::thread::sleep(pause);
        // The first one was begun and stood still since; the second one was not.
        for clone in 0..2 {
            let (mut machine, mut client) = restore(&template);
            let now: u64 = client.text("monotonic").parse().unwrap();
            let passed = Duration::from_nanos(now.checked_sub(at).expect("it never goes back"));
            assert!(passed < pause / 2, "{round}, {clone}: {passed:?}");
            assert_eq!(client.text("kept"), "root");
            client.text(&format!("keep {round}, {clone}"));
            let slept: u64 = client.text("clock 100").parse().unwrap();
            assert!((100_000..300_000).contains(&slept), "{round}, {clone}: {slept} µs");
            // It can be kept itself, and ends as others do.
            let child = machine.capture().unwrap();
            assert_eq!(restore(&child).1.text("kept"), format!("{round}, {clone}"));
            assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed);
        }
    }
    // One that nobody wanted goes with its template.
    template.prepare().unwrap();
}

fn no_time_has_passed_for_a_clone(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    let at: u64 = client.text("monotonic").parse().unwrap();
    let template = original.capture().unwrap();
    let pause = Duration::from_millis(2500);
    std::thread::sleep(pause);
    for _ in 0..3 {
        let (_machine, mut clone) = restore(&template);
        let now: u64 = clone.text("monotonic").parse().unwrap();
        let passed = Duration::from_nanos(now.checked_sub(at).expect("it never goes back"));
        assert!(passed < pause / 2, "{passed:?}");
        // Timers that are set afterwards run at the right pace.
        let (start, slept) = (Instant::now(), clone.text("clock 300"));
        let slept = Duration::from_micros(slept.parse().unwrap());
        let real = start.elapsed();
        assert!(
            slept >= Duration::from_millis(300) && real >= Duration::from_millis(300),
            "{slept:?} {real:?}"
        );
        assert!(real.abs_diff(slept) < Duration::from_millis(200), "{slept:?} {real:?}");
    }
    // The original has gone on.
    let now: u64 = client.text("monotonic").parse().unwrap();
    assert!(now - at > 2_500_000_000);
}

fn generations_of_clones(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    client.text("keep 0");
    let mut template = original.capture().unwrap();
    for generation in 0..7u32 {
        let (machine, mut clone) = restore(&template);
        assert_eq!(clone.text("kept"), generation.to_string());
        clone.text(&format!("keep {}", generation + 1));
        template = machine.capture().unwrap();
    }
    let (_machine, mut last) = restore(&template);
    assert_eq!(last.text("kept"), "7");
}

fn a_guest_is_kept_in_the_midst_of_its_work(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    client.text("keep it");
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut client = client;
            for round in 0..10 {
                let bytes = client.ask("get 3000000").unwrap();
                assert!((0u32..).zip(&bytes).all(|(at, byte)| u32::from(*byte) == at % 251), "round {round}");
                assert_eq!(client.put(&bytes).len(), "374997876".len());
            }
        });
        let mut kept = 0;
        while !worker.is_finished() {
            let template = original.capture().unwrap();
            kept += 1;
            if kept % 4 == 1 {
                let (_machine, mut clone) = restore(&template);
                assert_eq!(clone.text("kept"), "it");
            }
        }
        println!("kept {kept} times");
        assert!(kept > 2);
    });
}

fn a_machine_that_has_ended_cannot_be_kept(on: &Setup) {
    let machine = on.start("power-off");
    machine.wait(Some(BOOT_TIME)).expect("it ends");
    assert!(matches!(machine.capture().err(), Some(BackendError::PoweredOff { .. })));
}

fn pages_that_are_made_ahead_are_those_that_a_clone_uses(on: &Setup) {
    let mut original = on.start("serve");
    Client::connect(&mut *original);
    let template = original.capture().unwrap();
    let mut machine = template.restore_observed().unwrap();
    let mut client = Client::connect(&mut *machine);
    client.text("keep it");
    let set = machine.working_set();
    let bytes: u64 = set.iter().map(|range| range.end - range.start).sum();
    assert!((64 << 10..16 << 20).contains(&bytes), "{bytes} {set:?}");
    let ahead = template.with_working_set(set.clone());
    let machine = ahead.restore().unwrap();
    let there: u64 = machine.working_set().iter().map(|range| range.end - range.start).sum();
    assert!(there >= bytes, "{there} of {bytes}");
    println!("working set {} KiB in {} ranges", bytes >> 10, set.len());
}

/// Its guest has made processes' page tables, streams and timers; each time another, and none knows of those before.
fn a_spent_machine_is_made_new_in_its_place(on: &Setup) {
    const SECRET: &[u8] = b"the-tenant's-own-secret";
    let (mut original, mut client) = start_named(on);
    client.text("keep what the template keeps");
    let at: u64 = client.text("monotonic").parse().unwrap();
    let template = original.capture().unwrap();
    drop((client, original.kill()));
    let folder = tempfile::tempdir().unwrap();
    let secrets = |machine: &dyn Machine| {
        let path = folder.path().join("saved");
        machine.capture().unwrap().save(&path, &[]).unwrap();
        let file = std::fs::read(path).unwrap();
        file.windows(SECRET.len()).filter(|bytes| *bytes == SECRET).count()
    };
    // Longer ago than what is tolerated below.
    std::thread::sleep(Duration::from_secs(1));
    let mut began = Instant::now();
    let (mut machine, mut client) = restore(&template);
    let set = machine.working_set();
    for round in 0..9 {
        assert_eq!(client.text("kept"), "what the template keeps", "round {round}");
        // Its time goes on from where the template stood, at the host's pace.
        let now: u64 = client.text("monotonic").parse().unwrap();
        let passed = Duration::from_nanos(now.checked_sub(at).expect("it never goes back"));
        assert!(passed < began.elapsed() + Duration::from_millis(500), "round {round}: {passed:?}");
        client.text(&format!("keep {} {round}", std::str::from_utf8(SECRET).unwrap()));
        client.put(&SECRET.repeat(20_000));
        client.text("touch 8");
        if round % 4 == 0 {
            assert!(secrets(&*machine) > 10, "the tenant leaves traces");
        }
        // It may be at rest, or in the midst of something; its host may be there or gone.
        match round % 3 {
            0 => drop(client),
            1 => {
                client.begin("get 30000000");
                std::thread::sleep(Duration::from_millis(round * 2));
            }
            _ => {
                client.begin("clock 100");
                drop(client);
            }
        }
        began = Instant::now();
        machine.reset().unwrap();
        if round % 4 == 0 {
            assert_eq!(secrets(&*machine), 0, "round {round}");
            began = Instant::now();
            machine.reset().unwrap();
        }
        client = Client::connect(&mut *machine);
        assert!(machine.try_exit().is_none());
    }
    // The same with pages of its own ahead.
    let (mut machine, mut client) = restore(&template.with_working_set(set));
    for _ in 0..3 {
        client.text("keep something else");
        machine.reset().unwrap();
        client = Client::connect(&mut *machine);
        assert_eq!(client.text("kept"), "what the template keeps");
    }
    drop(client);
    machine.kill().unwrap();
    assert!(matches!(machine.reset(), Err(BackendError::Killed)));
}

/// Set in the process that the next test starts: the file to load.
const SAVED: &str = "HAYFORK_TEST_SAVED_MACHINE";

fn digests(spec: &MachineSpec) -> ImageDigests {
    ImageDigests::of_files(&spec.kernel, &spec.initramfs, None).unwrap()
}

/// A machine that can be saved.
pub(crate) fn start_named(on: &Setup) -> (Box<dyn Machine>, Client) {
    let mut spec = on.spec("serve");
    spec.digests = Some(digests(&spec));
    let mut machine = on.launch(&spec);
    let client = Client::connect(&mut *machine);
    (machine, client)
}

pub(crate) fn load(on: &Setup, path: &Path) -> Result<(Arc<dyn Template>, Vec<u8>), BackendError> {
    on.backend().load(path, &digests(&on.spec("serve")), None)
}

fn a_saved_machine_goes_on_in_another_process(on: &Setup) {
    if let Some(path) = std::env::var_os(SAVED) {
        let start = Instant::now();
        let (template, about) = load(on, Path::new(&path)).unwrap();
        let loaded = start.elapsed();
        assert_eq!(about, b"a test's own");
        for number in 0..3 {
            let start = Instant::now();
            let (_machine, mut clone) = restore(&template);
            println!("loaded in {loaded:?}, restored and answered in {:?}", start.elapsed());
            assert_eq!(clone.text("kept"), "the secret");
            clone.text(&format!("keep {number}"));
            assert_eq!(clone.put(&vec![3; 100_000]), "300000");
            assert_eq!(clone.ask("get 100000").unwrap().len(), 100_000);
            // Timers run.
            let slept: u64 = clone.text("clock 100").parse().unwrap();
            assert!((100_000..2_000_000).contains(&slept), "{slept}");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let (original, mut client) = start_named(on);
    client.text("keep the secret");
    let template = original.capture().unwrap();
    let (machine, mut clone) = restore(&template);
    assert_eq!(clone.text("kept"), "the secret");
    template.with_working_set(machine.working_set()).save(&path, b"a test's own").unwrap();
    println!("{} KiB", std::fs::metadata(&path).unwrap().len() >> 10);
    drop((clone, machine, template, client, original));

    let name = std::thread::current().name().unwrap().to_owned();
    let other = Command::new(std::env::current_exe().unwrap())
        .args([&name, "--exact", "--ignored", "--nocapture"])
        .env(SAVED, &path)
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&other.stdout).into_owned();
    assert!(other.status.success(), "{output}{}", String::from_utf8_lossy(&other.stderr));
    assert!(output.contains("loaded in"), "it ran: {output}");
    println!("{output}");
    // And in this one.
    let (template, _) = load(on, &path).unwrap();
    let (_machine, mut clone) = restore(&template);
    assert_eq!(clone.text("kept"), "the secret");
}

fn a_clone_s_clone_is_saved_whole(on: &Setup) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let (original, mut client) = start_named(on);
    client.text("keep 0");
    let mut template = original.capture().unwrap();
    for generation in 1..4 {
        let (machine, mut clone) = restore(&template);
        assert_eq!(clone.text("kept"), (generation - 1).to_string());
        clone.text(&format!("keep {generation}"));
        template = machine.capture().unwrap();
        template.save(&path, &[generation]).unwrap();
        let (loaded, about) = load(on, &path).unwrap();
        assert_eq!((about, loaded.ram()), (vec![generation], template.ram()));
        let (machine, mut clone) = restore(&loaded);
        assert_eq!(clone.text("kept"), generation.to_string());
        // What was loaded is kept again.
        template = machine.capture().unwrap();
    }
}

fn a_damaged_file_gives_no_machine(on: &Setup) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let (original, _client) = start_named(on);
    original.capture().unwrap().save(&path, b"about").unwrap();
    let damaged = folder.path().join("damaged");
    std::fs::copy(&path, &damaged).unwrap();
    let mut permissions = std::fs::metadata(&damaged).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
    std::fs::set_permissions(&damaged, permissions).unwrap();
    let length = std::fs::metadata(&path).unwrap().len();
    let file = std::fs::File::options().read(true).write(true).open(&damaged).unwrap();
    // The state is at the end, the memory before, the header at the front.
    for at in (0..40).map(|part| (length - 1) * part / 40).chain((length - 20_000..length).step_by(1013)) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        let error = load(on, &damaged).map(drop).expect_err("damage went unnoticed");
        assert!(["snapshot_corrupt", "not_a_snapshot"].contains(&error.code()), "{at}: {error}");
        file.write_all_at(&byte, at).unwrap();
    }
    load(on, &damaged).unwrap();
    file.set_len(length - 1).unwrap();
    assert_eq!(load(on, &damaged).err().unwrap().code(), "snapshot_truncated");
}

fn a_file_of_other_images_gives_no_machine(on: &Setup) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let unnamed = on.start("serve");
    assert_eq!(unnamed.capture().unwrap().save(&path, &[]).unwrap_err().code(), "unsupported_here");
    let (original, _client) = start_named(on);
    original.capture().unwrap().save(&path, &[]).unwrap();
    let own = digests(&on.spec("serve"));
    let root = guest::initramfs();
    let others = [
        (ImageDigests { kernel: "0".into(), ..own.clone() }, "its kernel is"),
        (ImageDigests { initramfs: "0".into(), ..own.clone() }, "its initramfs is"),
        (ImageDigests { root: Some("0".into()), ..own }, "its root image is none"),
    ];
    for (images, part) in others {
        let root = images.root.as_ref().map(|_| root.as_path());
        let error = on.backend().load(&path, &images, root).map(drop).expect_err("another's");
        assert_eq!(error.code(), "snapshot_foreign");
        assert!(error.to_string().contains(part), "{error}");
    }
}
