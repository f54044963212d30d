//! Sandboxes that are paused to disk and resumed, in this process and in another.
#![allow(missing_docs, clippy::unwrap_used)] // tests

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{block_on, out, run, shell};
use hayfork_sandbox::{
    Engine, EngineOptions, Error, Language, MAX_NOTE, ResumeOptions, Resumed, Sandbox, SandboxOptions,
};

const KEEP: ResumeOptions = ResumeOptions { keep: true };
const TAKE: ResumeOptions = ResumeOptions { keep: false };

/// Set in the processes that tests start: the id to resume, and the folder it is in.
const ID: &str = "HAYFORK_TEST_PAUSED_ID";
const FOLDER: &str = "HAYFORK_TEST_PAUSED_FOLDER";

fn engine(folder: &Path) -> Engine {
    let options = EngineOptions { paused: Some(folder.to_path_buf()), ..common::options() };
    Engine::new(options).unwrap()
}

async fn create(engine: &Engine) -> Sandbox {
    let options = SandboxOptions {
        env: vec![("GREETING".into(), "hello".into())],
        grant_root: true,
        ..SandboxOptions::new(Language::Python)
    };
    engine.create(options).await.unwrap()
}

fn code(result: Result<Resumed, Error>) -> &'static str {
    result.map(drop).expect_err("it must not be there").code()
}

#[test]
#[ignore = "needs the image set"]
fn a_paused_sandbox_goes_on_in_another_process() {
    if let (Ok(id), Some(folder)) = (std::env::var(ID), std::env::var_os(FOLDER)) {
        let engine = engine(Path::new(&folder));
        return block_on(&engine, async {
            let start = Instant::now();
            let sandbox = engine.resume(&id, TAKE).await.unwrap().sandbox;
            println!("resumed in {:?}", start.elapsed());
            assert_eq!(
                out(&run(&sandbox, "x.append(2); print(sum(x), open('f').read())").await),
                "42 kept\n"
            );
            assert_eq!(out(&run(&sandbox, "import os; print(os.environ['GREETING'])").await), "hello\n");
            assert_eq!(
                out(&shell(&sandbox, "cat beats | wc -l; sleep 0.5; cat beats | wc -l").await)
                    .lines()
                    .count(),
                2
            );
            let drift = run(&sandbox, "import time; print(time.time())").await;
            let guest: f64 = out(&drift).trim().parse().unwrap();
            let host =
                std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
            assert!((host - guest).abs() < 1.0, "{host} {guest}");
            assert_eq!(sandbox.language(), Language::Python);
        });
    }
    let folder = tempfile::tempdir().unwrap();
    let paused = folder.path().join("paused");
    let engine = engine(&paused);
    let id = block_on(&engine, async {
        let sandbox = create(&engine).await;
        run(&sandbox, "x = [40]; open('f', 'w').write('kept'); import subprocess").await;
        run(&sandbox, "subprocess.Popen('while :; do echo beat >> beats; sleep 0.1; done', shell=True)")
            .await;
        let start = Instant::now();
        let id = sandbox.pause("").await.unwrap();
        println!("paused in {:?}", start.elapsed());
        assert_eq!(id, sandbox.id());
        assert!(sandbox.is_closed());
        assert_eq!(sandbox.pause("").await.unwrap_err().code(), "session_closed");
        let listed = engine.paused().unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!((listed[0].id.as_str(), listed[0].language), (id.as_str(), Language::Python));
        println!("{} KiB on disk", listed[0].bytes >> 10);
        Some(id)
    });
    let Some(id) = id else { return };
    assert_eq!(fs::metadata(&paused).unwrap().permissions().mode() & 0o777, 0o700);
    let other = Command::new(std::env::current_exe().unwrap())
        .args(["a_paused_sandbox_goes_on_in_another_process", "--exact", "--ignored", "--nocapture"])
        .env(ID, &id)
        .env(FOLDER, &paused)
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&other.stdout).into_owned();
    assert!(other.status.success(), "{output}{}", String::from_utf8_lossy(&other.stderr));
    assert!(output.contains("resumed in"), "{output}");
    println!("{output}");
    assert_eq!(fs::read_dir(&paused).unwrap().count(), 0, "it is not paused any more");
}

#[test]
#[ignore = "needs the image set"]
fn resumed_once_it_is_gone_and_kept_it_has_clones() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        run(&sandbox, "x = 40").await;
        let id = sandbox.pause("").await.unwrap();
        let clones = [
            engine.resume(&id, KEEP).await.unwrap().sandbox,
            engine.resume(&id, KEEP).await.unwrap().sandbox,
        ];
        let mut seen = Vec::new();
        for clone in &clones {
            run(clone, "x += 1; import os, uuid").await;
            seen.push(out(&run(clone, "print(x, os.urandom(16), uuid.uuid4())").await));
            assert!(seen.last().unwrap().starts_with("41 "));
        }
        assert_ne!(seen[0], seen[1], "clones are nobody's twins");
        assert_ne!(clones[0].id(), clones[1].id());
        let last = engine.resume(&id, TAKE).await.unwrap().sandbox;
        assert_eq!(out(&run(&last, "print(x)").await), "40\n");
        assert_eq!(code(engine.resume(&id, TAKE).await), "paused_missing");
        assert_eq!(code(engine.resume("../../etc/passwd", TAKE).await), "paused_missing");
        // What was resumed can be paused again, and removed.
        assert_eq!(last.pause("x".repeat(MAX_NOTE + 1)).await.unwrap_err().code(), "bad_option");
        let id = last.pause("a note").await.unwrap();
        let kept = engine.resume(&id, KEEP).await.unwrap();
        assert_eq!(kept.note, "a note");
        engine.discard(&id).unwrap();
        assert_eq!(engine.discard(&id).unwrap_err().code(), "paused_missing");
        assert_eq!(engine.paused().unwrap(), []);
    });
}

#[test]
#[ignore = "needs the image set"]
fn of_two_who_resume_at_once_one_gets_it() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        // Both pause it as well.
        let (one, two) = tokio::join!(sandbox.pause(""), sandbox.pause(""));
        assert_eq!([&one, &two].iter().filter(|paused| paused.is_ok()).count(), 1, "{one:?} {two:?}");
        let id = one.or(two).unwrap();
        let (one, two) = tokio::join!(engine.resume(&id, TAKE), engine.resume(&id, TAKE));
        let codes: Vec<_> =
            [one, two].into_iter().filter_map(|result| result.err().map(|e| e.code())).collect();
        assert!(codes == ["paused_busy"] || codes == ["paused_missing"], "{codes:?}");
        assert_eq!(engine.paused().unwrap(), []);
    });
}

#[test]
#[ignore = "needs the image set"]
fn a_sandbox_that_cannot_be_written_runs_on_and_a_damaged_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let paused = folder.path().join("paused");
    let engine = engine(&paused);
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        run(&sandbox, "x = 40").await;
        fs::write(&paused, "no folder").ok();
        fs::remove_dir_all(&paused).ok();
        fs::write(&paused, "no folder").unwrap();
        assert_eq!(sandbox.pause("").await.unwrap_err().code(), "io");
        assert_eq!(out(&run(&sandbox, "print(x)").await), "40\n");
        fs::remove_file(&paused).unwrap();
        let id = sandbox.pause("").await.unwrap();

        let file = paused.join(format!("{id}.sandbox"));
        let good = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        for at in [100, good.len() / 2, good.len() - 5] {
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            fs::write(&file, damaged).unwrap();
            assert_eq!(code(engine.resume(&id, TAKE).await), "snapshot_corrupt");
            assert!(file.exists(), "it stays");
        }
        fs::write(&file, &good[..good.len() - 1]).unwrap();
        assert_eq!(code(engine.resume(&id, TAKE).await), "snapshot_truncated");
        fs::write(&file, &good).unwrap();
        let sandbox = engine.resume(&id, TAKE).await.unwrap().sandbox;
        assert_eq!(out(&run(&sandbox, "print(x)").await), "40\n");
    });
}

#[test]
#[ignore = "needs the image set"]
fn idle_timeouts_and_rights_go_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let id = sandbox.pause("").await.unwrap();
        let resumed = engine.resume(&id, TAKE).await.unwrap().sandbox;
        let mut command = hayfork_sandbox::CommandOptions::new(["id", "-u"]);
        command.user = hayfork_sandbox::User::Root;
        assert_eq!(out(&resumed.command(command).collect().await.unwrap()), "0\n");
        resumed.close().await.unwrap();

        let idle = Duration::from_secs(2);
        let options = SandboxOptions { idle_timeout: Some(idle), ..SandboxOptions::new(Language::Shell) };
        let sandbox = engine.create(options).await.unwrap();
        let id = sandbox.pause("").await.unwrap();
        let resumed = engine.resume(&id, TAKE).await.unwrap().sandbox;
        assert_eq!(resumed.language(), Language::Shell);
        let start = Instant::now();
        while !resumed.is_closed() {
            assert!(start.elapsed() < 10 * idle);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}
