#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::Write;

use super::*;

fn places(descriptor: RawFd) -> usize {
    TABLE.iter().filter(|place| place.load(Ordering::SeqCst) == descriptor).count()
}

#[test]
fn an_entry_lives_as_long_as_its_guard() {
    let file = tempfile::tempfile().unwrap();
    let number = file.as_raw_fd();
    let guard = Released::new(&file);
    assert_eq!(places(number), 1);
    drop(guard);
    assert_eq!(places(number), 0);
}

#[test]
fn the_file_of_a_registered_descriptor_stays_usable_here() {
    let mut file = tempfile::tempfile().unwrap();
    let _guard = Released::new(&file);
    file.write_all(b"here").unwrap();
    let same: File = file.try_clone().unwrap();
    assert_eq!(same.metadata().unwrap().len(), 4);
}
