//! Templates with names, and what is kept ready of them.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hayfork_protocol::message::{Event, Request};

use super::{TestEngine, block_on, create};
use crate::connection::fake_guest::{FakeBackend, finished, save};
use crate::connection::lock;
use crate::{BuildOptions, CloneOptions, Language, StartedFrom};

const LIMIT: Duration = Duration::from_secs(10);

/// What each machine was asked, in the order of their beginnings.
type Asked = Arc<Mutex<Vec<Vec<String>>>>;

/// A guest that does as it is told, but for the code `bad`.
fn obedient(asked: &Asked) -> FakeBackend {
    let asked = Arc::clone(asked);
    let backend = FakeBackend::new(move |mut guest| {
        guest.meet()?;
        let index = {
            let mut all = lock(&asked);
            all.push(Vec::new());
            all.len() - 1
        };
        loop {
            let (id, request) = guest.open()?;
            let end = match request {
                Request::Execute(execute) => {
                    let code = i32::from(execute.code == "bad");
                    lock(&asked)[index].push(execute.code);
                    finished(code)
                }
                Request::Renew(_) => {
                    lock(&asked)[index].push("renew".into());
                    Event::Done { bytes: 0 }
                }
                _ => Event::Done { bytes: 0 },
            };
            guest.end(id, &end);
        }
    });
    backend.with_templates()
}

fn engine(backend: &FakeBackend, folder: &Path) -> TestEngine {
    backend.engine_of(|options| options.named_templates = Some(folder.join("named")))
}

async fn build(engine: &TestEngine, code: Option<&str>) -> Result<(), crate::Error> {
    let built = engine.build_template(BuildOptions {
        name: "it".into(),
        language: Language::Python,
        memory_mib: None,
        cpus: None,
        code: code.map(Into::into),
        timeout: None,
    });
    built.await.map(drop)
}

async fn from(engine: &TestEngine) -> StartedFrom {
    engine.create_from("it", CloneOptions::default()).await.unwrap().boot_timings().from
}

fn names(engine: &TestEngine) -> Vec<String> {
    engine.templates().unwrap().into_iter().map(|template| template.name).collect()
}

#[test]
fn a_template_is_built_once_and_used_by_any_engine_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::default();
    let backend = obedient(&asked);
    let first = engine(&backend, folder.path());
    block_on(&first, async {
        build(&first, Some("mine")).await.unwrap();
        assert_eq!(lock(&asked)[0], ["mine", "print()", "renew", "print()"]);
        assert_eq!(from(&first).await, StartedFrom::Template);
    });
    let second = engine(&backend, folder.path());
    block_on(&second, async {
        assert_eq!((names(&second), from(&second).await), (vec!["it".into()], StartedFrom::Template));
        second.remove_template("it").unwrap();
        assert!(names(&second).is_empty());
    });
    block_on(&first, async {
        let error = first.create_from("it", CloneOptions::default()).await.unwrap_err();
        assert_eq!(error.code(), "template_missing", "not even from memory");
    });
}

#[test]
fn code_that_fails_leaves_the_template_that_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(&obedient(&Asked::default()), folder.path());
    block_on(&engine, async {
        assert_eq!(build(&engine, Some("bad")).await.unwrap_err().code(), "template_code_failed");
        assert!(names(&engine).is_empty());
        build(&engine, None).await.unwrap();
        build(&engine, Some("bad")).await.unwrap_err();
        assert_eq!(from(&engine).await, StartedFrom::Template);
    });
}

#[test]
fn what_is_kept_ready_is_as_it_was_kept_and_of_what_has_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked::default();
    let engine = engine(&obedient(&asked), folder.path());
    let keep = |count| engine.keep_warm_from("it", &CloneOptions::default(), count);
    block_on(&engine, async {
        assert_eq!(keep(1).unwrap_err().code(), "template_missing");
        build(&engine, None).await.unwrap();
        let before = lock(&asked).len();
        keep(2).unwrap();
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        assert_eq!(lock(&asked)[before..], [["renew"], ["renew"]], "nothing runs in them");
        assert_eq!(from(&engine).await, StartedFrom::Pool);
        assert_ne!(create(&engine).await.boot_timings().from, StartedFrom::Pool, "it is no language's");
        assert!(engine.wait_warm(LIMIT).await.unwrap());

        // Another process replaces it: what is in stock is of no use.
        let path = folder.path().join("named/it.template");
        let about = hayfork_vmm::snapshot::SnapshotFile::open(&path).unwrap().about().to_vec();
        save(&path, &about).unwrap();
        assert_eq!(from(&engine).await, StartedFrom::Template);
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        assert_eq!(from(&engine).await, StartedFrom::Pool);

        // It goes and comes: the wish stays.
        engine.remove_template("it").unwrap();
        assert!(engine.wait_warm(LIMIT).await.unwrap(), "none is there, and none is wanted");
        build(&engine, None).await.unwrap();
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        assert_eq!(from(&engine).await, StartedFrom::Pool);

        // Fewer are wanted, and then none, whether or not the template is there.
        engine.remove_template("it").unwrap();
        keep(1).unwrap();
        keep(0).unwrap();
        build(&engine, None).await.unwrap();
        assert_eq!(from(&engine).await, StartedFrom::Template);
    });
}

#[test]
fn more_than_can_be_kept_or_something_else_than_it_is_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(&obedient(&Asked::default()), folder.path());
    block_on(&engine, async {
        build(&engine, None).await.unwrap();
        let refusal =
            |options: CloneOptions, count| engine.keep_warm_from("it", &options, count).unwrap_err().code();
        assert_eq!(refusal(CloneOptions::default(), crate::MAX_WARM + 1), "bad_option");
        let other = CloneOptions { memory_mib: Some(512), ..CloneOptions::default() };
        assert_eq!(refusal(other, 1), "bad_option");
        assert_eq!(from(&engine).await, StartedFrom::Template);
    });
}
