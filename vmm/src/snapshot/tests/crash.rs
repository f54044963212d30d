//! Writers that die half-way, and several at once.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::super::write::WITHOUT_NAMELESS;
use super::*;

/// Set in the processes that this test starts: the folder to write to.
const CHILD: &str = "HAYFORK_TEST_SNAPSHOT_WRITER";

/// Versions of one file: which one it is stands in all of its parts.
fn version(number: u8) -> Sample {
    let length = 2000 * 4096;
    let pages: Vec<(u64, u8)> = (0..1000).map(|page| (page * 2, number)).collect();
    Sample {
        about: vec![number; 100_000],
        state: vec![number; 50_000],
        memory: memory(length, &pages),
        length,
        ..Sample::new()
    }
}

/// The version of a file that is whole.
fn check(path: &Path) -> u8 {
    let file = SnapshotFile::open(path).unwrap().admit(&identity(), StateKind::Qemu).unwrap();
    let state = file.state().unwrap();
    let loaded = file.memory("test").unwrap();
    let mut page = [0];
    File::from(loaded.memory).read_exact_at(&mut page, 1998 * 4096).unwrap();
    let about = file.into_about();
    assert!(about.iter().chain(&state).chain(&page).all(|&byte| byte == about[0]));
    about[0]
}

/// Not a test: what the children of the next one do.
#[test]
fn a_writer_of_another_process() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let path = Path::new(&folder).join("saved");
    let samples = [version(1), version(2), version(3)];
    for sample in samples.iter().cycle() {
        println!("\nwriting");
        std::io::stdout().flush().unwrap();
        sample.save(&path).unwrap();
    }
}

fn start_writer(folder: &Path, with_names: bool) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if with_names {
        command.env(WITHOUT_NAMELESS, "1");
    }
    command
        .args(["snapshot::tests::crash::a_writer_of_another_process", "--exact", "--nocapture"])
        .env(CHILD, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_writer_that_is_killed_leaves_the_old_file_and_nothing_that_stays() {
    killed_writers(false);
}

#[test]
fn and_so_it_is_where_every_file_must_have_a_name() {
    assert!(killed_writers(true) > 0, "some were killed while they wrote");
}

/// Kills many writers, and gives how many left a file that was not finished.
fn killed_writers(with_names: bool) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    version(9).save(&path).unwrap();
    let (mut seen, mut left) = ([0; 10], 0);
    // In the nested rig, where all takes 30 times as long, a few must do.
    let kills = if std::env::var_os("HAYFORK_RIG").is_some() { 4 } else { 40 };
    for round in 0..kills {
        let mut writer = start_writer(folder.path(), with_names);
        // Every third has written one, each is writing another.
        let mut writes = 1 + u32::from(round % 3 == 0);
        let mut line = String::new();
        let mut output = std::io::BufReader::new(writer.stdout.take().unwrap());
        while writes > 0 {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0);
            writes -= u32::from(line == "writing\n");
        }
        // Spread over the time that some writes take, without a pattern.
        std::thread::sleep(Duration::from_micros(round * 7_919 % 60_000));
        writer.kill().unwrap();
        writer.wait().unwrap();
        seen[usize::from(check(&path))] += 1;
        left += remove_leftovers(folder.path()).unwrap();
        let names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["saved"]);
    }
    println!("versions found after {kills} kills: {seen:?}; leftovers removed: {left}");
    assert!(seen[1..4].iter().sum::<u32>() > 0, "some writes came to their end");
    left
}

#[test]
fn leftovers_of_the_living_stay() {
    let folder = tempfile::tempdir().unwrap();
    let dead = folder.path().join(".hayfork-1-0.partial");
    let live = folder.path().join(".hayfork-1-1.partial");
    for (path, content) in [(&dead, "dead"), (&live, "live"), (&folder.path().join("other.partial"), "other")]
    {
        fs::write(path, content).unwrap();
    }
    let lock = File::open(&live).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(remove_leftovers(folder.path()).unwrap(), 1);
    assert!(!dead.exists() && live.exists());
    drop(lock);
    assert_eq!(remove_leftovers(folder.path()).unwrap(), 1);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "what is not ours stays");
    assert!(remove_leftovers(&folder.path().join("absent")).is_err());
}

#[test]
fn many_writers_and_readers_of_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    version(1).save(&path).unwrap();
    let end = Instant::now() + Duration::from_millis(700);
    std::thread::scope(|scope| {
        for number in 1..4 {
            let path = &path;
            scope.spawn(move || {
                let sample = version(number);
                while Instant::now() < end {
                    sample.save(path).unwrap();
                }
            });
        }
        while Instant::now() < end {
            assert!((1..4).contains(&check(&path)));
            assert_eq!(remove_leftovers(folder.path()).unwrap(), 0, "writers live");
        }
    });
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_folder_that_cannot_be_written_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let error = Sample::new().save(&folder.path().join("absent/saved")).unwrap_err();
    assert_eq!(error.code(), "snapshot_unwritable");
    // Something that no file can replace: the old is there, and the new is gone.
    let path = folder.path().join("saved");
    fs::create_dir(&path).unwrap();
    assert_eq!(Sample::new().save(&path).unwrap_err().code(), "snapshot_unwritable");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
