//! Watches on folders through the whole agent and its watcher.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use hayfork_protocol::change::{Change, ChangeKind, Decoder, Record};
use hayfork_protocol::limits::{MAX_WATCHED_FOLDERS, MAX_WATCHES};
use hayfork_protocol::message::{Control, FailureCode, Request};
use hayfork_protocol::{Event, StreamId};
use support::{Host, Outcome, PATIENCE, is};

fn records(outcome: &Outcome) -> Vec<Record> {
    let mut decoder = Decoder::default();
    decoder.push(&outcome.file);
    std::iter::from_fn(|| decoder.next().unwrap()).collect()
}

/// "+a", "+a/" for a folder, "~a" written, "-a", "a>b", "*a" attributes, "!" overflow.
fn short(change: &Change) -> String {
    let slash = if change.directory { "/" } else { "" };
    let path = format!("{}{slash}", change.path);
    match (change.kind, &change.to) {
        (ChangeKind::Created, _) => format!("+{path}"),
        (ChangeKind::Written, _) => format!("~{path}"),
        (ChangeKind::Removed, _) => format!("-{path}"),
        (ChangeKind::Renamed, to) => format!("{path}>{}", to.as_deref().unwrap_or_default()),
        (ChangeKind::Attributes, _) => format!("*{path}"),
        (ChangeKind::Overflow, _) => "!".into(),
    }
}

fn changes(outcome: &Outcome) -> Vec<String> {
    let all = records(outcome);
    all.iter()
        .filter_map(|r| if let Record::Change(change) = r { Some(short(change)) } else { None })
        .collect()
}

struct Watch {
    stream: StreamId,
    flushes: usize,
    seen: usize,
}

fn watch(host: &mut Host, path: &str, recursive: bool) -> Watch {
    let stream = host.open(&Request::Watch { path: path.into(), recursive });
    host.wait(stream, "a watch", |o| !o.events.is_empty());
    assert_eq!(host.outcome(stream).events, [Event::Watching]);
    Watch { stream, flushes: 0, seen: 0 }
}

impl Watch {
    /// What happened since the last call.
    fn news(&mut self, host: &mut Host) -> Vec<String> {
        host.control(self.stream, Control::Flush);
        self.flushes += 1;
        let due = self.flushes;
        host.wait(self.stream, "a flush", |o| {
            records(o).iter().filter(|record| **record == Record::Flushed).count() == due
        });
        let all = changes(host.outcome(self.stream));
        let news = all[self.seen..].to_vec();
        self.seen = all.len();
        news
    }
}

/// Waits until the agent's children have so many inotify instances. One that was just forked has the agent's own too.
fn instances(host: &Host, count: usize) {
    let give_up = Instant::now() + PATIENCE;
    while host.inotify_instances() != count {
        assert!(Instant::now() < give_up, "{} instances, not {count}", host.inotify_instances());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn make(path: impl AsRef<Path>) {
    fs::create_dir_all(path).unwrap();
}

#[test]
fn changes_of_every_kind_in_one_folder() {
    let mut host = Host::start();
    let home = host.home();
    make(home.join("d/sub"));
    let mut watch = watch(&mut host, "d", false);
    assert_eq!(watch.news(&mut host), [""; 0]);
    fs::write(home.join("d/a"), "x").unwrap();
    make(home.join("d/new"));
    fs::set_permissions(home.join("d/a"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(home.join("d/a"), home.join("d/b")).unwrap();
    fs::rename(home.join("d/b"), home.join("out")).unwrap();
    fs::rename(home.join("out"), home.join("d/in")).unwrap();
    fs::remove_file(home.join("d/in")).unwrap();
    fs::write(home.join("d/sub/unseen"), "x").unwrap();
    fs::write(home.join("unseen"), "x").unwrap();
    assert_eq!(watch.news(&mut host), ["+a", "~a", "+new/", "*a", "a>b", "-b", "+in", "-in"]);
    assert_eq!(watch.news(&mut host), [""; 0]);
}

#[test]
fn folders_made_later_are_watched_with_what_is_in_them() {
    let mut host = Host::start();
    let home = host.home();
    make(home.join("d/old/deep"));
    let mut watch = watch(&mut host, "d", true);
    fs::write(home.join("d/old/deep/f"), "").unwrap();
    assert_eq!(watch.news(&mut host), ["+old/deep/f"]);
    for round in 0..20 {
        make(home.join(format!("d/n{round}/x/y")));
        fs::write(home.join(format!("d/n{round}/x/y/f")), "").unwrap();
        let mut news = watch.news(&mut host);
        news.sort();
        let expected: Vec<String> = ["", "/x", "/x/y"]
            .iter()
            .map(|p| format!("+n{round}{p}/"))
            .chain([format!("+n{round}/x/y/f")])
            .collect();
        let mut expected = expected;
        expected.sort();
        assert_eq!(news, expected, "each once");
    }
    // Moved within: the folders below keep being watched, by their new names.
    fs::rename(home.join("d/n0"), home.join("d/old/moved")).unwrap();
    assert_eq!(watch.news(&mut host), ["n0/>old/moved"]);
    fs::write(home.join("d/old/moved/x/y/g"), "").unwrap();
    assert_eq!(watch.news(&mut host), ["+old/moved/x/y/g"]);
    // Moved out: no longer watched.
    fs::rename(home.join("d/old/moved"), home.join("elsewhere")).unwrap();
    fs::write(home.join("elsewhere/x/y/h"), "").unwrap();
    assert_eq!(watch.news(&mut host), ["-old/moved/"]);
    fs::write(home.join("elsewhere/x/y/i"), "").unwrap();
    assert_eq!(watch.news(&mut host), [""; 0]);
    // Moved in, with all it holds.
    fs::rename(home.join("elsewhere"), home.join("d/back")).unwrap();
    let mut news = watch.news(&mut host);
    news.sort();
    assert_eq!(
        news,
        ["+back/", "+back/x/", "+back/x/y/", "+back/x/y/f", "+back/x/y/g", "+back/x/y/h", "+back/x/y/i"]
    );
    fs::remove_dir_all(home.join("d/back")).unwrap();
    let news = watch.news(&mut host);
    assert_eq!((news.len(), news.last().unwrap().as_str()), (7, "-back/"));
    // Links are not followed.
    symlink("/etc", home.join("d/link")).unwrap();
    symlink("../..", home.join("d/up")).unwrap();
    fs::write(home.join("above"), "").unwrap();
    assert_eq!(watch.news(&mut host), ["+link", "+up"]);
}

#[test]
fn a_folder_that_goes_ends_its_watch() {
    let mut host = Host::start();
    let home = host.home();
    for recursive in [false, true] {
        make(home.join("gone/sub"));
        let watch = watch(&mut host, "gone", recursive);
        fs::remove_dir_all(home.join("gone")).unwrap();
        let outcome = host.end(watch.stream);
        outcome.done();
        assert_eq!(changes(&outcome), ["-sub/", "-/"]);
    }
    make(home.join("moved"));
    let stream = watch(&mut host, "moved", false).stream;
    fs::rename(home.join("moved"), home.join("away")).unwrap();
    symlink("/etc", home.join("moved")).unwrap();
    fs::write(home.join("away/x"), "").unwrap();
    let outcome = host.end(stream);
    outcome.done();
    assert_eq!(changes(&outcome), ["/>"]);
    // The last watch is over, and the watcher with it.
    instances(&host, 0);
}

#[test]
fn a_path_that_leads_elsewhere_by_now_ends_a_watch_that_needs_it() {
    let mut host = Host::start();
    let home = host.home();
    make(home.join("a/b/c"));
    make(home.join("victim"));
    let stream = watch(&mut host, "a/b", true).stream;
    // The folder itself stays what it is, and what is above it is replaced.
    fs::rename(home.join("a"), home.join("x")).unwrap();
    symlink("victim", home.join("a")).unwrap();
    make(home.join("victim/b"));
    fs::write(home.join("x/b/f"), "").unwrap();
    host.wait(stream, "a change", |o| changes(o) == ["+f"]);
    make(home.join("x/b/new"));
    let outcome = host.end(stream);
    assert_eq!(changes(&outcome), ["+f", "+new/", "/>"]);
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let mut host = Host::start();
    let home = host.home();
    fs::write(home.join("file"), "").unwrap();
    make(home.join("closed"));
    symlink("/etc", home.join("etc")).unwrap();
    symlink("real", home.join("inside")).unwrap();
    make(home.join("real"));
    let mut failure = |path: &str| {
        let outcome = host.run(&Request::Watch { path: path.into(), recursive: true });
        assert!(outcome.closed && outcome.file.is_empty());
        outcome.failure()
    };
    assert_eq!(failure("none").code, FailureCode::NotFound);
    let file = failure("file");
    assert_eq!(file.code, FailureCode::WrongType);
    assert!(file.message.contains("it is no folder"), "{}", file.message);
    for path in ["/etc", "etc", "..", "/", "real/../..", "a\0b", "/proc/self/root"] {
        assert_eq!(failure(path).code, FailureCode::BadPath, "{path:?}");
    }
    watch(&mut host, "inside", true);
}

#[test]
fn watches_are_limited_and_do_not_disturb_each_other() {
    let mut host = Host::start();
    let home = host.home();
    let mut all: Vec<Watch> = (0..MAX_WATCHES)
        .map(|n| {
            make(home.join(format!("w{n}")));
            watch(&mut host, &format!("w{n}"), n % 2 == 0)
        })
        .collect();
    is(FailureCode::TooMany, &host.run(&Request::Watch { path: String::new(), recursive: false }));
    instances(&host, MAX_WATCHES);
    fs::write(home.join("w3/f"), "").unwrap();
    for (n, watch) in all.iter_mut().enumerate() {
        let expected = if n == 3 { vec!["+f"] } else { vec![] };
        assert_eq!(watch.news(&mut host), expected, "{n}");
    }
    host.reset(all[0].stream);
    is(FailureCode::Cancelled, &host.end(all[0].stream));
    watch(&mut host, "", false);
    instances(&host, MAX_WATCHES);
}

#[test]
fn more_folders_than_allowed_are_refused_or_told_of() {
    let mut host = Host::start();
    let home = host.home();
    for n in 0..MAX_WATCHED_FOLDERS - 3 {
        make(home.join(format!("d/{n}")));
    }
    make(home.join("e"));
    let mut first = watch(&mut host, "d", true);
    let mut second = watch(&mut host, "e", true);
    make(home.join("e/one"));
    assert_eq!(second.news(&mut host), ["+one/"]);
    make(home.join("e/two"));
    assert_eq!(second.news(&mut host), ["+two/", "!"]);
    fs::write(home.join("e/one/f"), "").unwrap();
    fs::write(home.join("e/two/f"), "").unwrap();
    assert_eq!(second.news(&mut host), ["+one/f"]);
    is(FailureCode::TooMany, &host.run(&Request::Watch { path: "d".into(), recursive: true }));
    // Room that is given back is used.
    fs::remove_dir(home.join("d/7")).unwrap();
    assert_eq!(first.news(&mut host), ["-7/"]);
    make(home.join("e/three"));
    fs::write(home.join("e/three/f"), "").unwrap();
    let mut news = second.news(&mut host);
    news.sort();
    assert_eq!(news, ["+three/", "+three/f"]);
}

#[test]
fn a_flood_overflows_its_own_watch_alone() {
    let mut host = Host::start();
    let home = host.home();
    make(home.join("flood"));
    make(home.join("quiet"));
    let mut flood = watch(&mut host, "flood", true);
    let mut quiet = watch(&mut host, "quiet", true);
    // Nobody takes anything meanwhile, so that every bound on the way is reached.
    host.stingy = true;
    for n in 0..40_000 {
        let path = home.join(format!("flood/{n}"));
        fs::write(&path, "").unwrap();
        fs::remove_file(&path).unwrap();
    }
    make(home.join("flood/late/folder"));
    fs::write(home.join("quiet/f"), "").unwrap();
    assert_eq!(quiet.news(&mut host), ["+f"]);
    host.stingy = false;
    let mut received = host.outcome(flood.stream).file.len();
    host.mux.consumed(flood.stream, hayfork_protocol::Channel::File, received);
    let news = flood.news(&mut host);
    received = host.outcome(flood.stream).file.len();
    assert!(news.contains(&"!".to_owned()), "{} changes in {received} bytes", news.len());
    assert!(news.len() < 40_000, "{}", news.len());
    // Folders made while changes were lost are watched all the same.
    fs::write(home.join("flood/late/folder/f"), "").unwrap();
    assert_eq!(flood.news(&mut host), ["+late/folder/f"]);
}

#[test]
fn user_code_that_plays_with_the_folders_breaks_nothing() {
    let mut host = Host::start();
    let home = host.home();
    make(home.join("d"));
    let mut watch = watch(&mut host, "d", true);
    // Folders put below each other in turns, replaced by links, removed while they are looked at.
    let script = "cd d; i=0; while [ $i -lt 300 ]; do mkdir -p a/b/c; touch a/b/c/f; mv a/b t; mv a t/c/; mv t a; \
                  ln -s ../.. l; mv a/c/a/ x 2>/dev/null; rm -rf a x l; i=$((i+1)); done; mkdir end; echo done";
    let busy = host.open(&Request::Command(support::command(script)));
    while !host.outcome(busy).closed {
        watch.news(&mut host);
    }
    assert_eq!(host.outcome(busy).out(), "done\n", "{}", host.outcome(busy).err());
    watch.news(&mut host);
    fs::write(home.join("d/end/f"), "").unwrap();
    assert_eq!(watch.news(&mut host).last().unwrap(), "+end/f");
    assert!(!host.outcome(watch.stream).closed);
}

#[test]
fn a_new_session_begins_without_the_watches_of_the_last() {
    let mut host = Host::start();
    let home = host.home();
    watch(&mut host, "", true);
    watch(&mut host, "", false);
    instances(&host, 2);
    host.handshake();
    instances(&host, 0);
    let mut watch = watch(&mut host, "", false);
    fs::write(home.join("f"), "x").unwrap();
    assert_eq!(watch.news(&mut host), ["+f", "~f"]);
}
