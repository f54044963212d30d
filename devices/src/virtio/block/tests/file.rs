//! Disks in files.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use super::super::{BlockBackend, FileBackend};
use super::{DISCARD, IOERR, OK, Rig, WRITE_ZEROES, pattern};

fn file(len: usize) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(len)).unwrap();
    file
}

fn content(file: &File, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Bytes behind the last whole sector are neither read nor written.
#[test]
fn the_rest_behind_the_last_sector_is_out_of_reach() {
    let file = file(3 * 512 + 100);
    let mut rig = Rig::new(FileBackend::writable(file.try_clone().unwrap()).unwrap());
    assert_eq!(rig.config(0, 8), 3u64.to_le_bytes());
    assert_eq!(rig.read(3, 512, &[]).0, IOERR);
    assert_eq!(rig.write(3, &[1; 512], &[]), IOERR);
    assert_eq!(rig.segments(WRITE_ZEROES, &[(3, 1, 0)]), IOERR);
    assert_eq!(rig.write(2, &[1; 512], &[]), OK);
    assert_eq!(file.metadata().unwrap().len(), 3 * 512 + 100);
    assert!(content(&file, 3 * 512 + 100)[3 * 512..] == pattern(3 * 512 + 100)[3 * 512..]);
    assert_eq!(Rig::new(FileBackend::writable(self::file(511)).unwrap()).read(0, 512, &[]).0, IOERR);
}

#[test]
fn only_regular_files_are_disks() {
    assert!(FileBackend::read_only(File::open("/").unwrap()).is_err());
    assert!(FileBackend::read_only(File::open("/dev/null").unwrap()).is_err());
    assert!(FileBackend::read_only(file(0)).is_ok());
}

/// The device's rule, the backend's rule, and the descriptor's own: each holds by itself.
#[test]
fn read_only_files_stay_as_they_are() {
    let before = pattern(8 * 512);
    let file = file(8 * 512);
    let mut backend = FileBackend::read_only(file.try_clone().unwrap()).unwrap();
    assert!(backend.write_at(0, &[1; 512]).is_err());
    assert!(backend.discard(0, 512).is_err());
    assert!(backend.write_zeroes(0, 512, true).is_err());
    let mut rig = Rig::new(backend);
    assert_eq!(rig.write(0, &[1; 512], &[]), IOERR);
    assert_eq!(rig.segments(DISCARD, &[(0, 8, 0)]), IOERR);
    assert_eq!(rig.segments(WRITE_ZEROES, &[(0, 8, 1)]), IOERR);
    assert!(content(&file, 8 * 512) == before);
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), &before).unwrap();
    let mut rig = Rig::new(FileBackend::writable(File::open(path.path()).unwrap()).unwrap());
    assert_eq!(rig.write(0, &[1; 512], &[]), IOERR, "opened for reading only");
    assert_eq!(std::fs::read(path.path()).unwrap(), before);
}

/// Disks that share an open file do not move each other.
#[test]
fn one_open_file_serves_many_disks() {
    let file = Arc::new(file(64 * 512));
    let mut rigs: Vec<_> = (0..4).map(|_| Rig::new(FileBackend::read_only(file.clone()).unwrap())).collect();
    let all = pattern(64 * 512);
    for step in 0..20 {
        for (i, rig) in rigs.iter_mut().enumerate() {
            let sector = (i * 17 + step * 3) % 64;
            assert!(rig.read(sector as u64, 512, &[100]).1 == all[sector * 512..sector * 512 + 512]);
        }
    }
}

#[test]
fn zeroed_sectors_are_zero_and_their_neighbours_are_not() {
    for unmap in [0, 1] {
        let file = file(1024 * 512);
        let mut rig = Rig::new(FileBackend::writable(file.try_clone().unwrap()).unwrap());
        assert_eq!(rig.segments(WRITE_ZEROES, &[(3, 700, unmap)]), OK);
        let mut expected = pattern(1024 * 512);
        expected[3 * 512..703 * 512].fill(0);
        assert!(content(&file, 1024 * 512) == expected);
        assert_eq!(file.metadata().unwrap().len(), 1024 * 512);
    }
}

/// Where the file system can, a discarded range takes no storage.
#[test]
fn discarded_sectors_give_their_storage_back() {
    let file = file(4096 * 512);
    file.sync_all().unwrap();
    let before = file.metadata().unwrap().blocks();
    let mut rig = Rig::new(FileBackend::writable(file.try_clone().unwrap()).unwrap());
    assert_eq!(rig.segments(DISCARD, &[(8, 4080, 0)]), OK);
    let now = file.metadata().unwrap();
    assert_eq!(now.len(), 4096 * 512);
    assert!(now.blocks() + 2000 < before, "{} of {before} blocks left", now.blocks());
    let all = pattern(4096 * 512);
    let left = content(&file, 4096 * 512);
    assert!(left[..8 * 512] == all[..8 * 512] && left[4088 * 512..] == all[4088 * 512..]);
}
