//! File operations through the whole agent and its workers.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, Instant};

use hayfork_protocol::message::{FailureCode, FileInfo, FileKind, Request};
use hayfork_protocol::{Channel, Event};
use support::{Host, Outcome, is};

fn content(n: usize) -> Vec<u8> {
    (0..n).map(|i| u8::try_from((i * 31 + i / 251) % 256).unwrap()).collect()
}

fn entries(outcome: &Outcome) -> Vec<FileInfo> {
    outcome
        .events
        .iter()
        .filter_map(|e| if let Event::Entries(e) = e { Some(e.clone()) } else { None })
        .flatten()
        .collect()
}

fn list(host: &mut Host, path: &str) -> Outcome {
    host.run(&Request::List { path: path.into() })
}

#[test]
fn round_trips_of_many_sizes() {
    let mut host = Host::start();
    for size in [0, 1, 32_767, 32_768, 32_769, 65_536, 262_144, 262_145, 5_000_000] {
        let data = content(size);
        assert_eq!(host.put("file", &data).done(), size as u64);
        let outcome = host.get("file");
        assert_eq!(outcome.done(), size as u64);
        assert!(outcome.file == data, "{size}");
        assert_eq!(outcome.ends, [Channel::File]);
        let Some(Event::File(info)) = outcome.events.first() else { panic!("{:?}", outcome.events) };
        assert_eq!(
            (info.kind, info.bytes, info.mode, info.name.as_str()),
            (FileKind::File, size as u64, 0o640, "file")
        );
    }
}

#[test]
fn names_of_all_kinds() {
    let mut host = Host::start();
    let long = "n".repeat(255);
    for name in ["with space", "ünïcode-日本", ".hidden", "-dash", "new\nline", "*", long.as_str()] {
        let path = format!("folder {}/{name}", name.len());
        host.put(&path, b"x").done();
        assert_eq!(host.get(&path).file, b"x", "{name:?}");
    }
    is(FailureCode::BadPath, &host.put(&"n".repeat(256), b"x"));
    is(FailureCode::BadPath, &host.put("a\0b", b"x"));
}

#[test]
fn parents_are_made_and_a_second_write_replaces() {
    let mut host = Host::start();
    host.put("a/b/c/file", b"first").done();
    let inode = std::fs::metadata(host.home().join("a/b/c/file")).unwrap().ino();
    host.put("a/b/c/file", b"second").done();
    let path = host.home().join("a/b/c/file");
    assert_eq!(std::fs::read(&path).unwrap(), b"second");
    assert_ne!(std::fs::metadata(&path).unwrap().ino(), inode, "replaced, not written over");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(std::fs::read_dir(host.home().join("a/b/c")).unwrap().count(), 1, "nothing temporary is left");
}

#[test]
fn nothing_leads_out_of_home() {
    let mut host = Host::start();
    let outside = host.folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "s").unwrap();
    symlink(&outside, host.home().join("away")).unwrap();
    symlink("../outside/secret", host.home().join("relative")).unwrap();
    symlink("/etc/passwd", host.home().join("absolute")).unwrap();
    for path in ["../outside/secret", "away/secret", "relative", "absolute", "x/../../outside/secret"] {
        is(FailureCode::BadPath, &{
            let outcome = host.get(path);
            if matches!(outcome.events.last(), Some(Event::Failed(f)) if f.code == FailureCode::NotFound) {
                assert!(path.starts_with('x'));
                host.get("../outside/secret")
            } else {
                outcome
            }
        });
    }
    for path in ["/etc/passwd", "/", "/proc/self/environ", "/home/../etc/passwd"] {
        is(FailureCode::BadPath, &host.get(path));
    }
    for path in ["../new", "away/new", "relative", "absolute", "away/deep/new"] {
        is(FailureCode::BadPath, &host.put(path, b"x"));
    }
    for path in ["..", "away", "."] {
        let outcome = list(&mut host, path);
        if path == "." {
            outcome.done();
        } else {
            is(FailureCode::BadPath, &outcome);
        }
    }
    is(FailureCode::BadPath, &host.run(&Request::MakeDir { path: "away/new".into() }));
    is(FailureCode::BadPath, &host.run(&Request::Remove { path: "away/secret".into() }));
    is(FailureCode::BadPath, &host.run(&Request::Rename { from: "absolute".into(), to: "../out".into() }));
    assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"s");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    // A link itself may be looked at and removed.
    let Some(Event::File(info)) = host.run(&Request::Stat { path: "away".into() }).events.pop() else {
        panic!()
    };
    assert_eq!(info.kind, FileKind::Symlink);
    host.run(&Request::Remove { path: "away".into() }).done();
    assert!(outside.join("secret").exists());
}

#[test]
fn links_within_home_work() {
    let mut host = Host::start();
    host.put("real/file", b"x").done();
    symlink("real", host.home().join("link")).unwrap();
    symlink("real/../real/file", host.home().join("to-file")).unwrap();
    assert_eq!(host.get("link/file").file, b"x");
    assert_eq!(host.get("to-file").file, b"x");
    assert_eq!(host.get("link/../link/./file").file, b"x");
    host.put("link/new", b"y").done();
    assert_eq!(host.get("real/new").file, b"y");
}

#[test]
fn absolute_paths_into_home_and_temporary_folders() {
    let mut host = Host::start();
    let home = host.home().to_string_lossy().into_owned();
    host.put(&format!("{home}//sub/./file"), b"x").done();
    assert_eq!(host.get("sub/file").file, b"x");
    assert_eq!(list(&mut host, &home).done(), 0);
    let name = format!("/tmp/hayfork-agent-test-{}", std::process::id());
    host.put(&name, b"t").done();
    assert_eq!(host.get(&name).file, b"t");
    host.run(&Request::Remove { path: name.clone() }).done();
    is(FailureCode::NotFound, &host.get(&name));
}

#[test]
fn an_aborted_upload_leaves_nothing() {
    let mut host = Host::start();
    let stream = host.open(&Request::WriteFile { path: "half".into(), mode: 0o644 });
    assert!(host.mux.data(stream, Channel::File, &content(100_000)) > 0);
    host.turn(Duration::from_millis(300));
    host.reset(stream);
    is(FailureCode::Cancelled, &host.end(stream));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(std::fs::read_dir(host.home()).unwrap().count(), 0);
    host.put("whole", b"x").done();
}

#[test]
fn an_upload_that_fails_early_ends_early() {
    let mut host = Host::start();
    std::fs::create_dir(host.home().join("folder")).unwrap();
    std::fs::write(host.home().join("plain"), "").unwrap();
    is(FailureCode::WrongType, &host.put("folder", &content(3_000_000)));
    is(FailureCode::WrongType, &host.put("plain/below", &content(3_000_000)));
    // The same worker goes on.
    host.put("next", &content(100_000)).done();
    assert_eq!(host.get("next").file, content(100_000));
}

#[test]
fn folders_are_listed_in_order() {
    let mut host = Host::start();
    for name in ["b", "a", "Z", ".dot", "é", "10", "9"] {
        host.put(&format!("d/{name}"), name.as_bytes()).done();
    }
    host.run(&Request::MakeDir { path: "d/sub".into() }).done();
    let outcome = list(&mut host, "d");
    let found = entries(&outcome);
    let names: Vec<_> = found.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, [".dot", "10", "9", "Z", "a", "b", "sub", "é"]);
    assert_eq!(found.iter().find(|e| e.name == "sub").unwrap().kind, FileKind::Directory);
    assert_eq!(found.iter().find(|e| e.name == "10").unwrap().bytes, 2);
    is(FailureCode::NotFound, &list(&mut host, "none"));
    is(FailureCode::WrongType, &list(&mut host, "d/a"));
    assert!(entries(&list(&mut host, "d/sub")).is_empty());
}

#[test]
fn large_folders_are_listed_whole_and_removed() {
    let mut host = Host::start();
    let folder = host.home().join("many");
    std::fs::create_dir(&folder).unwrap();
    for i in 0..1200 {
        std::fs::write(folder.join(format!("{i:04}{}", "x".repeat(200))), "").unwrap();
    }
    let found = entries(&list(&mut host, "many"));
    assert_eq!(found.len(), 1200);
    assert!(found.windows(2).all(|pair| pair[0].name < pair[1].name));
    host.run(&Request::Remove { path: "many".into() }).done();
    assert!(!folder.exists());
}

#[test]
fn deep_trees_are_removed() {
    let mut host = Host::start();
    // Deeper than a path can be long, so step by step.
    let before = std::env::current_dir().unwrap();
    std::fs::create_dir(host.home().join("deep")).unwrap();
    std::env::set_current_dir(host.home().join("deep")).unwrap();
    let name = "d".repeat(100);
    for _ in 0..100 {
        std::fs::write("file", "").unwrap();
        std::fs::create_dir(&name).unwrap();
        std::env::set_current_dir(&name).unwrap();
    }
    std::env::set_current_dir(before).unwrap();
    symlink("/etc", host.home().join("deep/link")).unwrap();
    host.run(&Request::Remove { path: "deep".into() }).done();
    assert!(!host.home().join("deep").exists());
    assert!(std::path::Path::new("/etc/passwd").exists());
}

#[test]
fn folders_stat_rename_and_remove() {
    let mut host = Host::start();
    host.run(&Request::MakeDir { path: "a/b".into() }).done();
    host.run(&Request::MakeDir { path: "a/b".into() }).done();
    host.put("a/file", b"x").done();
    is(FailureCode::WrongType, &host.run(&Request::MakeDir { path: "a/file".into() }));
    host.run(&Request::Rename { from: "a/file".into(), to: "moved".into() }).done();
    assert_eq!(host.get("moved").file, b"x");
    is(FailureCode::NotFound, &host.run(&Request::Rename { from: "a/file".into(), to: "x".into() }));
    for path in [".", "", "/../", "a/.."] {
        let outcome = host.run(&Request::Remove { path: path.into() });
        is(FailureCode::BadPath, &outcome);
    }
    is(FailureCode::NotFound, &host.run(&Request::Remove { path: "none".into() }));
    is(FailureCode::NotFound, &host.run(&Request::Stat { path: "none".into() }));
    let Some(Event::File(info)) = host.run(&Request::Stat { path: ".".into() }).events.pop() else {
        panic!()
    };
    assert_eq!(info.kind, FileKind::Directory);
}

#[test]
fn special_files_are_not_read() {
    let mut host = Host::start();
    let made = host.run(&Request::Command(support::command("mkfifo pipe")));
    assert_eq!(made.finished().exit_code, 0);
    is(FailureCode::WrongType, &host.get("pipe"));
    is(FailureCode::WrongType, &host.get("."));
}

#[test]
fn many_transfers_at_once_and_while_code_runs() {
    let mut host = Host::start();
    let busy = host.open(&support::shell("sleep 30"));
    let data = content(400_000);
    let streams: Vec<_> =
        (0..20).map(|i| host.open(&Request::WriteFile { path: format!("f{i}"), mode: 0o600 })).collect();
    for stream in &streams {
        host.send(*stream, Channel::File, &data);
    }
    for stream in streams {
        assert_eq!(host.end(stream).done(), 400_000);
    }
    let streams: Vec<_> = (0..20).map(|i| host.open(&Request::ReadFile { path: format!("f{i}") })).collect();
    for stream in streams {
        assert!(host.end(stream).file == data);
    }
    assert!(!host.outcome(busy).closed);
    host.control(busy, hayfork_protocol::message::Control::Kill);
    host.end(busy);
}

#[test]
fn a_host_that_does_not_read_holds_a_download_and_no_other() {
    let mut host = Host::start();
    host.put("big", &content(2_000_000)).done();
    host.stingy = true;
    let stuck = host.open(&Request::ReadFile { path: "big".into() });
    host.wait(stuck, "a window", |o| o.file.len() + 40_000 > hayfork_protocol::limits::WINDOW as usize);
    let began = Instant::now();
    assert_eq!(list(&mut host, ".").done(), 0);
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(!host.outcome(stuck).closed);
    host.reset(stuck);
    host.end(stuck);
}
