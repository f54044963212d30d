//! Tests of the store: what readers see while and after builders run, fail or die.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::anyhow;

use super::*;

fn store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().expect("tempdir");
    let store = Store::new(directory.path().join("cache"));
    (directory, store)
}

fn write_one(directory: &Path) -> Result<Built> {
    fs::write(directory.join("data"), b"bytes")?;
    Ok(Built { source: "a source".to_owned(), facts: BTreeMap::new() })
}

#[test]
fn an_entry_is_built_once_and_described() {
    let (_directory, store) = store();
    let entry = store.get_or_build("kind", "k1", || {}, write_one).expect("builds");
    assert!(entry.built);
    assert_eq!(entry.manifest.source, "a source");
    assert_eq!(entry.manifest.files["data"].bytes, 5);
    assert_eq!(entry.manifest.files["data"].blake3, blake3::hash(b"bytes").to_hex().to_string());
    assert!(!entry.manifest.files.contains_key(MANIFEST));
    let mode = fs::metadata(entry.directory.join("data")).expect("file").permissions().mode();
    assert_eq!(mode & 0o777, 0o444);

    let again = store.get_or_build("kind", "k1", || {}, |_| Err(anyhow!("must not be built again")));
    let again = again.expect("there");
    assert!(!again.built);
    assert_eq!(again.manifest, entry.manifest);
}

#[test]
fn a_failed_build_leaves_no_entry_and_can_be_repeated() {
    let (_directory, store) = store();
    let failed = store.get_or_build(
        "kind",
        "k1",
        || {},
        |directory| {
            fs::write(directory.join("half"), b"half")?;
            Err(anyhow!("out of luck"))
        },
    );
    assert!(failed.is_err_and(|error| error.to_string() == "out of luck"));
    assert!(store.find("kind", "k1").is_none());
    assert!(!store.root().join("kind/k1").exists());
    assert!(!store.root().join("partial/kind-k1").exists());
    let entry = store.get_or_build("kind", "k1", || {}, write_one).expect("builds");
    assert!(!entry.manifest.files.contains_key("half"));
}

#[test]
fn concurrent_builders_build_once() {
    let (_directory, store) = store();
    let (builds, waits) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begin = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                begin.wait();
                let entry = store.get_or_build(
                    "kind",
                    "k1",
                    || {
                        waits.fetch_add(1, Ordering::Relaxed);
                    },
                    |directory| {
                        builds.fetch_add(1, Ordering::Relaxed);
                        // Long enough that the others arrive while this one builds.
                        thread::sleep(Duration::from_millis(200));
                        write_one(directory)
                    },
                );
                assert_eq!(entry.expect("entry").manifest.files["data"].bytes, 5);
            });
        }
    });
    assert_eq!(builds.load(Ordering::Relaxed), 1);
    assert_eq!(waits.load(Ordering::Relaxed), 3);
}

#[test]
fn different_entries_do_not_wait_for_each_other() {
    let (_directory, store) = store();
    store
        .get_or_build(
            "kind",
            "outer",
            || {},
            |directory| {
                store.get_or_build("kind", "inner", || panic!("waits"), write_one)?;
                write_one(directory)
            },
        )
        .expect("builds");
    assert!(store.find("kind", "inner").is_some());
}

/// Environment variable that makes [`a_killed_builder_leaves_no_half_entry`] the builder, in the store it names.
const HANGING_BUILDER: &str = "HAYFORK_TEST_HANGING_BUILDER";

fn hang_half_way(store: &Store) {
    let built = store.get_or_build(
        "kind",
        "k1",
        || {},
        |directory| {
            fs::write(directory.join("half"), b"half")?;
            thread::sleep(Duration::from_secs(60));
            Err(anyhow!("was not killed"))
        },
    );
    panic!("{built:?}");
}

/// A builder in a process of its own is killed half-way: the lock is free again at once, no entry is
/// there, and the next builder starts from an empty directory.
#[test]
fn a_killed_builder_leaves_no_half_entry() {
    if let Some(path) = std::env::var_os(HANGING_BUILDER) {
        return hang_half_way(&Store::new(path.into()));
    }
    let (directory, store) = store();
    let path = store.root().to_owned();
    // The child is this very test, told by the environment to be the builder.
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "store::tests::a_killed_builder_leaves_no_half_entry"])
        .env(HANGING_BUILDER, &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("child");
    let half = path.join("partial/kind-k1/half");
    for _ in 0..500 {
        if half.exists() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert!(half.exists(), "the child builds");
    assert!(store.find("kind", "k1").is_none(), "nothing to see while it builds");
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert!(half.exists(), "it was killed half-way");
    assert!(store.find("kind", "k1").is_none());
    let entry =
        store.get_or_build("kind", "k1", || panic!("the lock is still held"), write_one).expect("builds");
    assert_eq!(entry.manifest.files.len(), 1);
    drop(directory);
}

#[test]
fn something_in_an_entrys_place_is_replaced() {
    let (_directory, store) = store();
    let place = store.root().join("kind/k1");
    fs::create_dir_all(&place).expect("directory");
    fs::write(place.join("data"), b"without a manifest").expect("file");
    assert!(store.find("kind", "k1").is_none());
    let entry = store.get_or_build("kind", "k1", || {}, write_one).expect("builds");
    assert_eq!(fs::read(entry.directory.join("data")).expect("read"), b"bytes");
}

#[test]
fn keys_depend_on_every_input() {
    let key_of = |a: &str, b: u32| key(&(a, b)).expect("key");
    assert_eq!(key_of("a", 1), key_of("a", 1));
    assert_ne!(key_of("a", 1), key_of("a", 2));
    assert_ne!(key_of("a", 1), key_of("b", 1));
    assert_eq!(key_of("a", 1).len(), 32);
}

#[test]
fn trees_without_write_permission_are_removed() {
    let directory = tempfile::tempdir().expect("tempdir");
    let tree = directory.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).expect("directories");
    fs::write(tree.join("a/b/file"), b"").expect("file");
    fs::set_permissions(tree.join("a/b"), Permissions::from_mode(0o555)).expect("permissions");
    fs::set_permissions(tree.join("a"), Permissions::from_mode(0o555)).expect("permissions");
    remove_tree(&tree).expect("removes");
    assert!(!tree.exists());
    remove_tree(&tree).expect("nothing to remove");
}

#[test]
fn files_are_replaced_as_a_whole() {
    let directory = tempfile::tempdir().expect("tempdir");
    let path = directory.path().join("sub/file");
    replace_file(&path, b"one").expect("writes");
    replace_file(&path, b"two").expect("replaces");
    assert_eq!(fs::read(&path).expect("read"), b"two");
    assert_eq!(fs::read_dir(path.parent().expect("parent")).expect("list").count(), 1);
}
