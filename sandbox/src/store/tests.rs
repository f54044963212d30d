//! Tests of the store: any content will do for entries.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;

fn key(number: u8) -> Key {
    Key::of([&[number][..]])
}

fn saved(bytes: usize) -> impl FnOnce(&Path) -> io::Result<()> {
    move |path| fs::write(path, vec![7; bytes])
}

fn never(_: &Path) -> io::Result<()> {
    panic!("it is there")
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

/// Makes an entry look as if it had been used that many seconds ago.
fn age(store: &Store, key: &Key, seconds: u64) {
    let file = File::open(store.entry(key)).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}

#[test]
fn keys_are_of_content() {
    let parts = |parts: &[&str]| Key::of(parts.iter().map(|part| part.as_bytes()));
    assert_eq!(parts(&["ab", "c"]), parts(&["ab", "c"]));
    assert_ne!(parts(&["ab", "c"]), parts(&["a", "bc"]));
    assert_ne!(parts(&["ab"]), parts(&["ab", ""]));
    assert!(parts(&[]).as_str().len() == 64);
}

#[test]
fn an_entry_is_made_once_and_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/templates");
    let store = Store::open(&path, 1000).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(store.get(&key(1)), None);
    let entry = store.put(&key(1), saved(10)).unwrap();
    assert_eq!(store.put(&key(1), never).unwrap(), entry);
    assert_eq!(Store::open(&path, 1000).unwrap().get(&key(1)), Some(entry));
    assert_eq!((store.size(), names(&path).len()), (10, 1));
    let failed = store.put(&key(2), |_| Err(io::Error::other("no"))).unwrap_err();
    assert_eq!(failed.to_string(), "no");
    store.put(&key(2), saved(5)).unwrap();
    assert!(store.remove(&key(2)) && !store.remove(&key(2)));
    assert_eq!(store.get(&key(2)), None);
    assert_eq!(names(&path).len(), 1);
}

#[test]
fn those_that_were_not_used_for_longest_go_first() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), 100).unwrap();
    for number in 0..4 {
        store.put(&key(number), saved(25)).unwrap();
        age(&store, &key(number), 100 - u64::from(number));
    }
    assert_eq!(store.evict(), 0, "as many as fit");
    store.get(&key(0)).unwrap();
    store.put(&key(9), saved(40)).unwrap();
    let left = |number| store.entry(&key(number)).exists();
    assert_eq!([0, 1, 2, 3, 9].map(left), [true, false, false, true, true]);
    // One that is too large by itself stays as long as it is the newest.
    store.put(&key(10), saved(500)).unwrap();
    assert_eq!(store.size(), 500);
    assert_eq!((store.evict(), store.size()), (1, 0));
}

#[test]
fn a_folder_that_others_can_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = Store::open(folder.path(), 1).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
}

#[test]
fn threads_that_want_the_same_entry_make_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), 1000).unwrap();
    let made = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..30 {
                    store
                        .put(&key(round), |path| {
                            made.fetch_add(1, Ordering::SeqCst);
                            std::thread::sleep(Duration::from_millis(1));
                            saved(1)(path)
                        })
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(made.into_inner(), 30);
    assert_eq!(names(folder.path()).len(), 30, "no lock is left");
}

/// Set in the processes that tests start: the store's folder.
const CHILD: &str = "HAYFORK_TEST_STORE";

/// Not a test: what the children of the next ones do.
#[test]
fn a_user_of_another_process() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let store = Store::open(Path::new(&folder), 1 << 20).unwrap();
    for round in 0..40 {
        let path = store
            .put(&key(round), |path| {
                // Who makes it says so, in a file that nobody else can make.
                let mark = Path::new(&folder).join(format!("made-{round}"));
                File::options().create_new(true).write(true).open(mark)?;
                let aside = path.with_extension(format!("aside-{}", std::process::id()));
                fs::write(&aside, [round; 1000])?;
                std::thread::sleep(Duration::from_millis(2));
                fs::rename(aside, path)
            })
            .unwrap();
        assert_eq!(fs::read(path).unwrap(), [round; 1000]);
    }
}

fn start_user(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["store::tests::a_user_of_another_process", "--exact"])
        .env(CHILD, folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn processes_that_want_the_same_entry_make_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let users: Vec<Child> = (0..4).map(|_| start_user(folder.path())).collect();
    for mut user in users {
        assert!(user.wait().unwrap().success());
    }
    assert_eq!(names(folder.path()).iter().filter(|name| name.starts_with("made-")).count(), 40);
    assert_eq!(names(folder.path()).iter().filter(|name| name.ends_with(LOCK)).count(), 0);
}

#[test]
fn what_killed_processes_leave_is_no_hindrance() {
    let folder = tempfile::tempdir().unwrap();
    let mut locks = 0;
    for round in 0..12u64 {
        let mut user = start_user(folder.path());
        std::thread::sleep(Duration::from_millis(20 + round * 5));
        user.kill().unwrap();
        user.wait().unwrap();
        locks += names(folder.path()).iter().filter(|name| name.ends_with(LOCK)).count();
        for name in names(folder.path()).iter().filter(|name| name.starts_with("made-")) {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join(".hayfork-1-1.partial"), "x").unwrap();
        let store = Store::open(folder.path(), 1 << 20).unwrap();
        assert!(names(folder.path()).iter().all(|name| !name.starts_with('.')), "{:?}", names(folder.path()));
        for number in 0..40 {
            store.put(&key(number), |path| fs::write(path, [number; 1000])).unwrap();
            assert_eq!(fs::read(store.get(&key(number)).unwrap()).unwrap(), [number; 1000]);
            store.remove(&key(number));
        }
    }
    println!("{locks} locks of the dead were removed");
}
