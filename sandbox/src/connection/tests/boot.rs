//! From launch to the agent's answer.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hayfork_protocol::limits::{MAX_CONTROL, VERSION};
use hayfork_vmm::backend::{ExitKind, Isolation, KernelFlavour};

use super::{block_on, create, python};
use crate::connection::fake_guest::{FakeBackend, Guest};
use crate::{Error, Language, SandboxOptions};

#[test]
fn a_guest_that_answers_is_a_sandbox() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        guest.idle()
    });
    let engine = backend.engine();
    let sandbox = block_on(&engine, create(&engine));
    let timings = sandbox.boot_timings();
    assert_eq!((timings.backend.as_str(), timings.accelerator.as_str()), ("fake", "tcg"));
    assert_eq!((timings.kernel, timings.isolation), (KernelFlavour::Plain, Isolation::Emulation));
    assert_eq!(timings.fallback, None);
    assert!(backend.kernel.lock().unwrap().ends_with("vmlinux"));
    assert!(timings.total >= timings.launch + timings.handshake);
    assert_eq!(
        (sandbox.language(), sandbox.memory_mib(), sandbox.is_closed()),
        (Language::Python, 256, false)
    );
    assert_eq!(sandbox.id().len(), 12);
}

#[test]
fn more_than_the_backend_has_is_refused_before_anything_is_launched() {
    let backend = FakeBackend::new(|_| None).with_limits(2, 512);
    let engine = backend.engine();
    for (options, text) in [
        (SandboxOptions { cpus: Some(3), ..python() }, "3 virtual CPUs are more than the 2"),
        (SandboxOptions { memory_mib: Some(513), ..python() }, "513 MiB of memory are more than the 512"),
    ] {
        let error = block_on(&engine, engine.create(options)).unwrap_err();
        assert_eq!(error.code(), "bad_option");
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(backend.launched.load(Ordering::SeqCst), 0);
}

#[test]
fn a_backend_gets_the_kernel_that_it_asks_for_and_the_sandbox_says_so() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        guest.idle()
    })
    .on_kvm_pvm();
    let engine = backend.engine();
    let sandbox = block_on(&engine, create(&engine));
    assert!(backend.kernel.lock().unwrap().ends_with("vmlinux-pvm"));
    let timings = sandbox.boot_timings();
    assert_eq!((timings.accelerator.as_str(), timings.kernel), ("kvm", KernelFlavour::Pvm));
    assert_eq!(timings.isolation, Isolation::KvmPvm);
    assert!(!timings.isolation.guest_kernel_is_a_wall());
}

#[test]
fn ids_differ() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let (one, two) = (create(&engine).await, create(&engine).await);
        assert_ne!(one.id(), two.id());
    });
}

fn failure(
    script: impl Fn(Guest) -> Option<ExitKind> + Send + Sync + 'static,
    options: SandboxOptions,
) -> Error {
    let backend = FakeBackend::new(script);
    let engine = backend.engine();
    let error = block_on(&engine, engine.create(options)).unwrap_err();
    backend.wait_until_killed(1);
    error
}

#[test]
fn a_guest_that_dies_while_booting_says_of_what() {
    let error = failure(|_| Some(ExitKind::Panic), python());
    assert_eq!(error.code(), "kernel_panic");
    assert!(error.to_string().contains("the last words of the console"), "{error}");
    let error = failure(|_| Some(ExitKind::Crashed), python());
    assert_eq!(error.code(), "vm_exited");
    assert!(error.to_string().contains("the last words of the hypervisor"), "{error}");
}

#[test]
fn a_guest_that_never_answers_is_killed_after_the_boot_timeout() {
    let options = SandboxOptions { boot_timeout: Some(Duration::from_millis(50)), ..python() };
    let error = failure(
        |mut guest| {
            while guest.read().is_some() {}
            None
        },
        options,
    );
    assert_eq!(error.code(), "boot_timeout");
    assert!(error.to_string().contains("the last words of the console"), "{error}");
}

#[test]
fn an_agent_of_another_version_is_refused() {
    let error = failure(
        |mut guest| {
            guest.meet_as(0, &["python"])?;
            guest.idle()
        },
        python(),
    );
    assert_eq!(error.code(), "protocol");
}

#[test]
fn an_image_without_the_language_is_refused() {
    let error = failure(
        |mut guest| {
            guest.meet_as(VERSION, &["shell"])?;
            guest.idle()
        },
        python(),
    );
    assert_eq!(error.code(), "image_language_missing");
}

#[test]
fn a_preamble_that_was_swallowed_is_sent_again() {
    let backend = FakeBackend::new(|mut guest| {
        // In the middle of a frame: everything up to here is its payload.
        let first = guest.preamble()?;
        let mut swallowed = 0;
        while swallowed < MAX_CONTROL {
            swallowed += guest.read()?.len();
        }
        // An answer to the first one comes too late to count.
        guest.answer(&first, VERSION, &["shell"]);
        // More than one may come if this thread is slow.
        loop {
            let next = guest.preamble()?;
            assert_ne!(first, next);
            guest.answer(&next, VERSION, &["python"]);
        }
    });
    let engine = backend.engine();
    block_on(&engine, create(&engine));
}

#[test]
fn a_guest_that_was_told_the_time_long_before_it_looked_is_told_again() {
    const BOOT: Duration = Duration::from_millis(120);

    let (tell, told) = mpsc::channel();
    let backend = FakeBackend::new(move |mut guest| {
        let mut pause = BOOT;
        loop {
            let (nonce, time) = guest.preamble_and_time()?;
            tell.send(time).ok()?;
            thread::sleep(std::mem::take(&mut pause));
            guest.answer(&nonce, VERSION, &["python"]);
            guest.write(b"half a frame");
        }
    });
    let engine = backend.engine_that_speaks_again();
    let sandbox = block_on(&engine, create(&engine));
    drop((sandbox, engine));
    let times: Vec<Duration> = told.try_iter().collect();
    // A loaded host may take too long once more.
    assert!((2..=3).contains(&times.len()), "{times:?}");
    assert!(times[1] + Duration::from_millis(5) >= times[0] + BOOT, "{times:?}");
}

#[test]
fn bad_options_launch_nothing() {
    let backend = FakeBackend::new(|_| None);
    let engine = backend.engine();
    let cases = [
        (SandboxOptions { memory_mib: Some(1), ..python() }, "memory_too_small"),
        (SandboxOptions { memory_mib: Some(u32::MAX), ..python() }, "bad_option"),
        (SandboxOptions { cpus: Some(0), ..python() }, "bad_option"),
        (SandboxOptions { name: Some("a/b".into()), ..python() }, "bad_option"),
        (SandboxOptions { env: vec![("PATH".into(), "/".into())], ..python() }, "env_invalid"),
        (SandboxOptions::new(Language::Shell), "image_language_missing"),
    ];
    for (options, code) in cases {
        assert_eq!(
            block_on(&engine, engine.create(options.clone())).unwrap_err().code(),
            code,
            "{options:?}"
        );
    }
    assert_eq!(backend.launched.load(Ordering::SeqCst), 0);
}

#[test]
fn a_create_that_is_given_up_leaves_no_machine() {
    let (started, wait) = mpsc::channel();
    let backend = FakeBackend::new(move |mut guest| {
        let _ = started.send(());
        while guest.read().is_some() {}
        None
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let create = engine.create(python());
        let gave_up = tokio::time::timeout(Duration::from_millis(100), create).await;
        assert!(gave_up.is_err());
    });
    wait.recv_timeout(Duration::from_secs(5)).expect("it was launched");
    backend.wait_until_killed(1);
}
