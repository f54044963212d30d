//! Templates that are kept on disk, and loaded by engines that come later.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hayfork_protocol::message::{Event, Request};

use super::{TestEngine, block_on, create, python};
use crate::connection::fake_guest::{FakeBackend, save};
use crate::{Language, SandboxOptions, StartedFrom, WarmOptions};

/// A guest that does whatever it is told.
fn obedient() -> FakeBackend {
    refusing(&Arc::default())
}

/// The same, which dies of being renewed while that is set.
fn refusing(refuses: &Arc<AtomicBool>) -> FakeBackend {
    let refuses = Arc::clone(refuses);
    FakeBackend::new(move |mut guest| {
        guest.meet()?;
        loop {
            let (id, request) = guest.open()?;
            match request {
                Request::Execute(_) => guest.finish(id),
                Request::Renew(_) if refuses.load(Ordering::SeqCst) => {
                    return Some(hayfork_vmm::backend::ExitKind::Panic);
                }
                _ => guest.end(id, &Event::Done { bytes: 0 }),
            }
        }
    })
    .with_templates()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "template")).collect()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Has a template made and waits until it is on disk.
fn fill(backend: &FakeBackend, folder: &Path) {
    let engine = backend.engine_with_store(folder);
    block_on(&engine, async {
        for _ in 0..2 {
            assert_eq!(create(&engine).await.boot_timings().from, StartedFrom::Boot);
        }
    });
    wait_until("a template is saved", || entries(folder).len() == 1);
    engine.shutdown();
}

async fn first(engine: &TestEngine) -> StartedFrom {
    create(engine).await.boot_timings().from
}

#[test]
fn a_later_engine_begins_with_the_template_of_an_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let backend = obedient();
    fill(&backend, folder.path());
    let launched = backend.launched.load(Ordering::SeqCst);
    let engine = backend.engine_with_store(folder.path());
    block_on(&engine, async {
        let mut many = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let engine = crate::Engine::clone(&engine);
            many.spawn(async move { engine.create(python()).await.unwrap().boot_timings().from });
        }
        assert_eq!(many.join_all().await, [StartedFrom::Template; 8]);
        // Another kind is another template.
        let other = SandboxOptions { cpus: Some(2), ..python() };
        assert_eq!(engine.create(other).await.unwrap().boot_timings().from, StartedFrom::Boot);
        let booted = SandboxOptions { fresh_boot: true, ..python() };
        assert_eq!(engine.create(booted).await.unwrap().boot_timings().from, StartedFrom::Boot);
        // A pool is filled without booting.
        engine
            .keep_warm(WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count: 2 })
            .unwrap();
        assert!(engine.wait_warm(Duration::from_secs(10)).await.unwrap());
    });
    assert_eq!(backend.launched.load(Ordering::SeqCst), launched + 2);
}

#[test]
fn what_is_damaged_or_another_is_removed_and_made_anew() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 3] = [
        ("cut off", |path| fs::write(path, "HAYSNAP").unwrap()),
        ("empty", |path| fs::write(path, "").unwrap()),
        ("another's", |path| save(path, b"of somebody else").unwrap()),
    ];
    for (name, damage) in damages {
        let folder = tempfile::tempdir().unwrap();
        let backend = obedient();
        fill(&backend, folder.path());
        let path = entries(folder.path()).remove(0);
        let good = fs::read(&path).unwrap();
        damage(&path);
        let engine = backend.engine_with_store(folder.path());
        block_on(&engine, async {
            assert_eq!(first(&engine).await, StartedFrom::Boot, "{name}");
            assert!(entries(folder.path()).is_empty(), "{name}");
            assert_eq!(first(&engine).await, StartedFrom::Boot, "{name}");
        });
        wait_until("it is made anew", || fs::read(&path).is_ok_and(|bytes| bytes == good));
    }
}

#[test]
fn one_whose_machines_do_not_come_to_life_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let refuses = Arc::default();
    let backend = refusing(&refuses);
    fill(&backend, folder.path());
    refuses.store(true, Ordering::SeqCst);
    let engine = backend.engine_with_store(folder.path());
    block_on(&engine, async { assert_eq!(first(&engine).await, StartedFrom::Boot) });
    wait_until("it is gone", || entries(folder.path()).is_empty());
}

#[test]
fn a_store_that_cannot_be_used_costs_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    // Others may write there: nothing of it is trusted.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let backend = obedient();
    let engine = backend.engine_with_store(folder.path());
    block_on(&engine, async {
        let until = Instant::now() + Duration::from_secs(10);
        while first(&engine).await == StartedFrom::Boot {
            assert!(Instant::now() < until, "a template is made in memory all the same");
        }
    });
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // A place that is no folder.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let engine = backend.engine_with_store(&file);
    block_on(&engine, async { assert_eq!(first(&engine).await, StartedFrom::Boot) });
}

#[test]
fn of_two_engines_that_want_the_same_one_makes_it() {
    let folder = tempfile::tempdir().unwrap();
    let backend = obedient();
    let options = WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count: 1 };
    let engines: Vec<_> = (0..4).map(|_| backend.engine_with_store(folder.path())).collect();
    for engine in &engines {
        engine.keep_warm(options).unwrap();
    }
    for engine in &engines {
        assert!(engine.runtime().block_on(engine.wait_warm(Duration::from_secs(10))).unwrap());
    }
    assert_eq!(backend.launched.load(Ordering::SeqCst), 1, "the others have loaded it");
    assert_eq!(entries(folder.path()).len(), 1);
}

#[test]
fn who_waits_for_somebody_that_dies_makes_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let backend = obedient();
    fill(&backend, folder.path());
    let path = entries(folder.path()).remove(0);
    fs::remove_file(&path).unwrap();
    let name = path.file_stem().unwrap().to_str().unwrap();
    let other = crate::store::Lock::take(folder.path().join(format!(".{name}.lock"))).unwrap();
    let launched = backend.launched.load(Ordering::SeqCst);
    let engine = backend.engine_with_store(folder.path());
    engine
        .keep_warm(WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count: 1 })
        .unwrap();
    let ready = |limit| engine.runtime().block_on(engine.wait_warm(limit)).unwrap();
    assert!(!ready(Duration::from_millis(200)), "somebody makes it");
    assert_eq!(backend.launched.load(Ordering::SeqCst), launched);
    drop(other);
    assert!(ready(Duration::from_secs(10)));
    assert_eq!(backend.launched.load(Ordering::SeqCst), launched + 1);
}
