//! What the host must look like, and what is left on it.
#![allow(missing_docs, clippy::unwrap_used)] // tests

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::{block_on, create, engine, qemu, run};
use hayfork_sandbox::{Engine, EngineOptions, Error, Language, SandboxOptions, Verdict};

/// An engine that would use this folder and this QEMU, and the error that creating a sandbox gives.
fn refusal(images: &Path, qemu: Option<PathBuf>, options: SandboxOptions) -> Error {
    let engine =
        Engine::new(EngineOptions { images: Some(images.to_owned()), qemu, ..EngineOptions::default() })
            .unwrap();
    block_on(&engine, engine.create(options)).unwrap_err()
}

/// A set that is complete by its manifest, and whose files are none.
fn fake_set() -> tempfile::TempDir {
    let set = tempfile::tempdir().unwrap();
    let part = |file: &str| {
        fs::write(set.path().join(file), "x").unwrap();
        format!(r#"{{"file": "{file}", "blake3": "{}", "bytes": 1}}"#, "0".repeat(64))
    };
    let manifest = format!(
        r#"{{"format": 1, "version": "test", "kernel": {}, "initramfs": {}, "images": {{"python": {}}}}}"#,
        part("vmlinux"),
        part("initramfs.cpio"),
        part("python.erofs")
    );
    fs::write(set.path().join("manifest.json"), manifest).unwrap();
    set
}

#[test]
fn what_is_missing_is_named_with_a_remedy() {
    let (empty, set) = (tempfile::tempdir().unwrap(), fake_set());
    let python = || SandboxOptions::new(Language::Python);
    let nowhere = Some(PathBuf::from("/nowhere/qemu-system-x86_64"));
    let cases = [
        (refusal(empty.path(), None, python()), "images_missing"),
        (refusal(set.path(), None, SandboxOptions::new(Language::Shell)), "image_language_missing"),
        (refusal(set.path(), nowhere, python()), "qemu_missing"),
        // Found before the missing images.
        (refusal(empty.path(), None, SandboxOptions { memory_mib: Some(1), ..python() }), "memory_too_small"),
        (refusal(empty.path(), None, SandboxOptions { cpus: Some(0), ..python() }), "bad_option"),
    ];
    for (error, code) in cases {
        assert_eq!(error.code(), code, "{error}");
        assert!(!error.remedy().is_empty());
    }
}

#[test]
fn an_unknown_backend_is_refused() {
    let options = EngineOptions { backend: Some("docker".into()), ..EngineOptions::default() };
    assert_eq!(Engine::new(options).unwrap_err().code(), "bad_option");
}

#[test]
fn a_doctor_looks_at_everything_and_says_what_is_wrong() {
    let (empty, set) = (tempfile::tempdir().unwrap(), fake_set());
    for (images, verdict) in [(empty.path(), Verdict::Fail), (set.path(), Verdict::Warn)] {
        let options = EngineOptions { images: Some(images.to_owned()), ..EngineOptions::default() };
        let engine = Engine::new(options).unwrap();
        let report = block_on(&engine, engine.doctor());
        let names: Vec<&str> = report.checks.iter().map(|check| check.name).collect();
        assert_eq!(names, ["images", "backend", "isolation", "kvm", "memory", "cpus"]);
        assert_eq!(report.checks[0].verdict, verdict, "{report:?}");
        for check in &report.checks {
            assert_eq!(check.remedy.is_none(), check.verdict == Verdict::Ok, "{check:?}");
        }
        assert!(serde_json::to_string(&report).unwrap().contains(r#""verdict":"#));
    }
}

/// Whether a process is there and not a zombie.
fn is_alive(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat"))
        .ok()
        .and_then(|stat| stat.rsplit(')').next().map(|rest| !rest.trim_start().starts_with('Z')))
        .unwrap_or(false)
}

#[test]
#[ignore = "needs the image set"]
fn sandboxes_that_were_closed_leave_neither_descriptor_nor_thread() {
    let engine = engine();
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    let left = || (count("/proc/self/fd"), count("/proc/self/task"));
    block_on(&engine, async {
        let one = || async {
            let sandbox = create(&engine, Language::Shell).await;
            run(&sandbox, "true").await;
            sandbox.close().await.unwrap();
        };
        // The first one brings what the process keeps.
        one().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = left();
        let is_as_before = || left().0 <= before.0 && left().1 <= before.1;
        for _ in 0..3 {
            one().await;
        }
        // Some of it is done behind the owner's back.
        let until = Instant::now() + Duration::from_secs(10);
        while !is_as_before() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(is_as_before(), "{:?} descriptors and threads, {before:?} before", left());
    });
}

#[test]
#[ignore = "needs the image set"]
fn closing_dropping_and_shutting_down_leave_no_process() {
    let engine = qemu();
    let (one, two, three) = engine.runtime().block_on(async {
        let sandbox = create(&engine, Language::Python).await;
        let one = sandbox.process_id().expect("QEMU is a process");
        assert!(is_alive(one));
        assert!(sandbox.host_memory().is_some());
        sandbox.close().await.unwrap();
        assert!(!is_alive(one), "dead when close returns");
        let sandbox = create(&engine, Language::Python).await;
        let two = sandbox.process_id().unwrap();
        drop(sandbox);
        let sandbox = create(&engine, Language::Python).await;
        let three = sandbox.process_id().unwrap();
        engine.shutdown();
        assert!(!is_alive(three), "dead when shutdown returns");
        (one, two, three)
    });
    assert!(![one, two, three].into_iter().any(is_alive));
}

#[test]
#[ignore = "needs the image set"]
fn a_machine_that_is_killed_from_outside_is_told_of() {
    let engine = qemu();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        let running = sandbox.execute(hayfork_sandbox::ExecuteOptions::new("while True: pass"));
        let process = sandbox.process_id().unwrap().to_string();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(Command::new("kill").args(["-9", &process]).status().unwrap().success());
        let error = running.collect().await.unwrap_err();
        assert_eq!(error.code(), "outcome_unknown", "{error}");
        assert!(error.to_string().contains("signal 9"), "{error}");
        assert_eq!(sandbox.stats().await.unwrap_err().code(), "session_closed");
    });
}

/// Not a test of its own: the process that the next test kills.
#[test]
#[ignore = "run by another test"]
fn a_process_with_a_sandbox() {
    if std::env::var_os("HAYFORK_TEST_CHILD").is_none() {
        return;
    }
    let engine = qemu();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        run(&sandbox, "print(1)").await;
        println!("\nQEMU {}", sandbox.process_id().unwrap());
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
}

#[test]
#[ignore = "needs the image set"]
fn sigkill_of_the_host_process_leaves_no_qemu_within_a_second() {
    drop(qemu()); // says so if there are no images
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_with_a_sandbox", "--ignored", "--nocapture"])
        .env("HAYFORK_TEST_CHILD", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let qemu: u32 = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("QEMU ").map(|pid| pid.parse().unwrap()))
        .expect("the child has a sandbox");
    assert!(is_alive(qemu));
    child.kill().unwrap();
    let killed = Instant::now();
    while is_alive(qemu) {
        assert!(killed.elapsed() < Duration::from_secs(1), "QEMU {qemu} is still there");
        thread::sleep(Duration::from_millis(5));
    }
    child.wait().unwrap();
    println!("QEMU was gone after {:?}", killed.elapsed());
}
