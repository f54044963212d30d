//! What was written is read.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;

#[test]
fn everything_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let sample = Sample::new();
    sample.save(&path).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o400);
    let file = SnapshotFile::open(&path).unwrap();
    assert_eq!(file.identity(), &sample.identity);
    assert_eq!(file.about(), sample.about);
    // A hole of two pages is written as zeroes; longer ones are not there.
    assert_eq!(file.memory_bytes(), 6 * 4096);
    let file = file.admit(&identity(), StateKind::Qemu).unwrap();
    assert_eq!(file.state().unwrap(), sample.state);
    assert_eq!(file.working_set().unwrap(), sample.working_set);
    let LoadedMemory { memory, length, extents } = file.memory("test").unwrap();
    assert_eq!(length, sample.length);
    assert_eq!(extents, [0..4 * 4096, 50 * 4096..51 * 4096, 98 * 4096..99 * 4096]);
    let memory = File::from(memory);
    assert_eq!(memory.metadata().unwrap().len(), length);
    assert!(memory.metadata().unwrap().blocks() * 512 < length / 2, "holes stay holes");
    let (mut saved, mut loaded) = (vec![0; 100 * 4096], vec![0; 100 * 4096]);
    sample.memory.read_exact_at(&mut saved, 0).unwrap();
    memory.read_exact_at(&mut loaded, 0).unwrap();
    assert!(saved == loaded);
    assert_eq!(file.into_about(), sample.about);
}

#[test]
fn a_memory_of_nothing_and_one_larger_than_a_piece() {
    let folder = tempfile::tempdir().unwrap();
    let mut sample = Sample::new();
    (sample.about, sample.state) = (Vec::new(), Vec::new());
    for (name, pages, length) in [("empty", 0, 0), ("holes", 0, 1 << 40 >> 6), ("long", 1000, 2000 * 4096)] {
        let path = folder.path().join(name);
        let content: Vec<(u64, u8)> =
            (0..pages).map(|page| (page, u8::try_from(page % 200 + 1).unwrap())).collect();
        (sample.memory, sample.length) = (memory(length, &content), length);
        if length > 1 << 32 {
            // Holes are not looked through, where whoever saves knows them.
            let contents = Contents {
                identity: &sample.identity,
                about: &[],
                kind: StateKind::Qemu,
                state: &[],
                memory: Memory { length, pieces: Vec::new() },
                working_set: &[],
            };
            write(&path, &contents).unwrap();
        } else {
            sample.save(&path).unwrap();
        }
        let file = SnapshotFile::open(&path).unwrap().admit(&identity(), StateKind::Qemu).unwrap();
        let loaded = file.memory("test").unwrap();
        assert_eq!(loaded.length, length);
        let mut bytes = vec![0; usize::try_from(pages * 4096).unwrap()];
        File::from(loaded.memory).read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.chunks(4096).zip(&content).all(|(page, (_, byte))| page == [*byte; 4096]), "{name}");
    }
}

#[test]
fn what_is_too_long_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let sample = Sample { about: vec![0; (1 << 20) + 1], ..Sample::new() };
    let error = sample.save(&path).unwrap_err();
    assert!(matches!(error, SnapshotError::TooLong { given: 1_048_577, .. }), "{error}");
    let sample = Sample { identity: identity().with("x", "y".repeat(20_000)), ..Sample::new() };
    assert_eq!(sample.save(&path).unwrap_err().code(), "snapshot_too_long");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // As much as fits.
    Sample { about: vec![7; 1 << 20], ..Sample::new() }.save(&path).unwrap();
    assert_eq!(SnapshotFile::open(&path).unwrap().about(), vec![7; 1 << 20]);
}

#[test]
fn what_belongs_elsewhere_is_refused_and_the_part_is_named() {
    let bytes = Sample::bytes();
    let admit =
        |here: &Identity, kind| SnapshotFile::of(bytes, Path::new("f")).unwrap().admit(here, kind).map(drop);
    admit(&identity(), StateKind::Qemu).unwrap();
    let others = [
        (identity().with("kernel", "00fe"), "kernel", Some("00ff"), Some("00fe")),
        (identity().with("boot of the host", "x"), "boot of the host", None, Some("x")),
        (
            Identity::new("monitor").with("kernel", "00ff").with("processor", "a processor"),
            "backend",
            Some("test"),
            Some("monitor"),
        ),
        (Identity::new("test").with("kernel", "00ff"), "processor", Some("a processor"), None),
    ];
    for (here, expected, then, now) in others {
        match admit(&here, StateKind::Qemu) {
            Err(SnapshotError::Foreign { part, saved, here, .. }) => {
                assert_eq!((part.as_str(), saved.as_deref(), here.as_deref()), (expected, then, now));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(admit(&identity(), StateKind::Monitor).unwrap_err().code(), "snapshot_corrupt");
}

#[test]
fn nothing_of_the_memory_is_read_before_the_identity_is_right() {
    use std::cell::RefCell;
    #[derive(Debug)]
    struct Watched<'a>(&'a [u8], &'a RefCell<Vec<Range<u64>>>);
    impl Source for Watched<'_> {
        fn length(&self) -> std::io::Result<u64> {
            self.0.length()
        }
        fn read(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
            self.1.borrow_mut().push(offset..offset + buffer.len() as u64);
            self.0.read(buffer, offset)
        }
    }
    let (bytes, reads) = (Sample::bytes(), RefCell::default());
    let file = SnapshotFile::of(Watched(bytes, &reads), Path::new("f")).unwrap();
    let memory = HEADER..HEADER + file.memory_bytes();
    let error = file.admit(&identity().with("kernel", "other"), StateKind::Qemu).unwrap_err();
    assert_eq!(error.code(), "snapshot_foreign");
    let reads = reads.into_inner();
    assert!(
        !reads.is_empty() && reads.iter().all(|read| read.end <= memory.start || read.start >= memory.end)
    );
}

#[test]
fn a_newer_format_is_said_to_be_one() {
    let mut bytes = Sample::bytes().to_vec();
    bytes[8] = 2;
    bytes[24..56].fill(0);
    let digest = blake3::hash(&bytes[..4096]);
    bytes[24..56].copy_from_slice(digest.as_bytes());
    let error = SnapshotFile::of(&bytes[..], Path::new("f")).unwrap_err();
    assert!(matches!(error, SnapshotError::Newer { found: 2, known: 1, .. }), "{error}");
}

#[test]
fn what_is_no_snapshot_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let code = || SnapshotFile::open(&path).unwrap_err().code();
    assert_eq!(code(), "snapshot_unreadable");
    for content in [&b""[..], b"\x7fELF", &[0; 5000]] {
        fs::write(&path, content).unwrap();
        assert_eq!(code(), "not_a_snapshot");
    }
    fs::write(&path, b"HAYS").unwrap();
    assert_eq!(code(), "snapshot_truncated");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(code(), "not_a_snapshot");
    fs::remove_dir(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(code(), "not_a_snapshot", "and nobody waits for a writer");
}

#[test]
fn identities_are_compared_whatever_their_order() {
    let one = Identity::default().with("a", "1").with("b", "2");
    let two = Identity::default().with("b", "3").with("a", "1").with("b", "2");
    assert_eq!((one.difference(&two), one.digest()), (None, two.digest()));
    assert_ne!(one.digest(), Identity::default().with("a", "12").with("b", "").digest());
    assert_eq!(one.difference(&Identity::default().with("a", "1")), Some("b"));
    assert_eq!(Identity::default().difference(&one), Some("a"));
    assert_eq!(boot_id().unwrap().len(), 36);
}

#[test]
fn every_error_has_a_code_and_a_remedy() {
    let path = || std::path::PathBuf::from("f");
    let io = || std::io::Error::other("x");
    let errors = [
        SnapshotError::Unreadable { path: path(), source: io() },
        SnapshotError::NotASnapshot { path: path() },
        SnapshotError::Newer { path: path(), found: 2, known: 1 },
        SnapshotError::Truncated { path: path(), expected: 2, found: 1 },
        SnapshotError::Corrupt { path: path(), what: "x" },
        SnapshotError::Foreign { path: path(), part: "x".into(), saved: None, here: None },
        SnapshotError::TooLong { what: "x", given: 2, most: 1 },
        SnapshotError::Unwritable { path: path(), what: "x", source: io() },
        SnapshotError::NoMemory { source: io() },
    ];
    for error in errors {
        assert!(error.code().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{error:?}");
        assert!(error.remedy().ends_with('.') && !error.to_string().is_empty(), "{error:?}");
    }
}

#[test]
#[allow(clippy::single_range_in_vec_init)] // Lists of ranges, of one too.
fn memory_whose_pieces_do_not_fit_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let sample = Sample::new();
    let page = |page: u64| page * 4096;
    for ranges in [
        vec![page(1)..page(3), page(0)..page(1)],
        vec![page(0)..page(3), page(2)..page(4)],
        vec![page(0)..page(3), page(0)..page(3)],
        vec![page(98)..page(101)],
        vec![0..100],
        vec![100..page(1)],
        vec![page(3)..page(1)],
    ] {
        let contents = Contents {
            identity: &sample.identity,
            about: &[],
            kind: StateKind::Qemu,
            state: &[],
            memory: Memory {
                length: sample.length,
                pieces: ranges.iter().map(|range| (range.clone(), sample.memory.as_fd())).collect(),
            },
            working_set: &[],
        };
        let error = write(&path, &contents).unwrap_err();
        assert!(matches!(error, SnapshotError::Unwritable { .. }), "{ranges:?}: {error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{ranges:?}");
    }
}
