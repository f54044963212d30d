//! Tests of the comparison, and the long test that builds an image twice.

use std::collections::BTreeMap;

use crate::packages::{self, Purpose};
use crate::progress::Progress;
use crate::store::{Built, Store};

use super::*;

#[test]
fn differences_between_two_builds_are_named() {
    let directory = tempfile::tempdir().expect("tempdir");
    let store = Store::new(directory.path().join("cache"));
    let write = |directory: &Path, image: &str, contents: &str| {
        fs::write(directory.join(image::FILE), image).expect("image");
        fs::write(directory.join(image::CONTENTS), contents).expect("contents");
    };
    let entry = store
        .get_or_build(
            "image-x",
            "k1",
            || {},
            |directory| {
                write(directory, "bytes", "same\nfile one\n");
                Ok(Built { source: String::new(), facts: BTreeMap::new() })
            },
        )
        .expect("entry");
    let second = directory.path().join("second");
    fs::create_dir(&second).expect("directory");
    write(&second, "bytes", "same\nfile one\n");
    assert!(compare(&entry, &second, image::FILE).expect("compares").is_empty());
    write(&second, "other", "same\nfile two\n");
    let lines = compare(&entry, &second, image::FILE).expect("compares");
    assert!(lines[0].contains("root.erofs"), "{lines:?}");
    assert_eq!(lines[1..], ["- file one", "+ file two"]);
}

/// Builds the shell image twice, from nothing, into a cache of its own.
#[test]
#[ignore = "takes minutes and the network; run by `cargo xtask test guest`"]
fn the_shell_image_is_the_same_when_built_twice() {
    let directory = tempfile::tempdir().expect("tempdir");
    let context = Context {
        tree: Context::new().expect("tree").tree,
        store: Store::new(directory.path().join("cache")),
        progress: Progress::new(),
    };
    packages::ensure(&[Purpose::Image], &context.progress).expect("packages");
    let options = Options::default();
    let wanted = [Which::Image("shell".to_owned())];
    check(&context, &options, &wanted).expect("the same");
}
