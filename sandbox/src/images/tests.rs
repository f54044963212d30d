//! Tests of manifest, lookup and opened sets, on small sets made in temporary directories.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use hayfork_vmm::backend::KernelFlavour;

use super::locate::cache_directory_from;
use super::manifest::{Image, ParseError, Part};
use super::*;

fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Writes a complete set with the given version into `directory`.
fn make_set(directory: &Path, version: &str) -> SetManifest {
    fs::create_dir_all(directory).expect("directory");
    let file = |name: &str, bytes: &[u8]| {
        fs::write(directory.join(name), bytes).expect("file");
        (name.to_owned(), digest(bytes), bytes.len() as u64)
    };
    let part = |(file, blake3, bytes), source: &str| Part { file, blake3, bytes, source: source.to_owned() };
    let mut images = BTreeMap::new();
    for language in ["python", "shell"] {
        let (file, blake3, bytes) = file(&format!("{language}.erofs"), language.as_bytes());
        images.insert(
            language.to_owned(),
            Image { file, blake3, bytes, contents: format!("{language}.contents.txt") },
        );
    }
    let manifest = SetManifest {
        format: manifest::FORMAT,
        version: version.to_owned(),
        kernel: part(file("vmlinux", b"a kernel"), "linux-source-6.12 6.12.1-1"),
        kernels: BTreeMap::new(),
        initramfs: part(file("initramfs.cpio", b"an archive"), "hayfork-agent 0.1.0"),
        images,
    };
    fs::write(directory.join(manifest::FILE_NAME), manifest.to_text().expect("text")).expect("manifest");
    manifest
}

#[test]
fn manifest_survives_writing_and_reading() {
    let directory = tempfile::tempdir().expect("tempdir");
    let manifest = make_set(directory.path(), "0.1.0");
    let text = manifest.to_text().expect("text");
    assert_eq!(SetManifest::parse(&text), Ok(manifest.clone()));
    assert_eq!(text, SetManifest::parse(&text).expect("parsed").to_text().expect("text"));
    let names: Vec<&str> = manifest.files().map(|(file, _, _)| file).collect();
    assert_eq!(names, ["vmlinux", "initramfs.cpio", "python.erofs", "shell.erofs"]);
}

#[test]
fn unknown_fields_are_ignored_and_missing_ones_refused() {
    let directory = tempfile::tempdir().expect("tempdir");
    let text = make_set(directory.path(), "0.1.0").to_text().expect("text");
    let more = text.replacen("\"format\": 1,", "\"format\": 1, \"colour\": \"red\",", 1);
    assert_ne!(text, more);
    assert!(SetManifest::parse(&more).is_ok());
    let less = text.replacen("\"initramfs\": {", "\"initrd\": {", 1);
    assert!(
        matches!(SetManifest::parse(&less), Err(ParseError::Json(reason)) if reason.contains("initramfs"))
    );
}

#[test]
fn another_format_is_named_even_if_nothing_else_fits() {
    assert_eq!(SetManifest::parse(r#"{"format": 7, "layout": []}"#), Err(ParseError::Format(7)));
    assert!(matches!(SetManifest::parse("{}"), Err(ParseError::Json(_))));
    assert!(matches!(SetManifest::parse("not json"), Err(ParseError::Json(_))));
}

#[test]
fn names_that_leave_the_set_and_bad_digests_are_refused() {
    let directory = tempfile::tempdir().expect("tempdir");
    let good = make_set(directory.path(), "0.1.0");
    for name in ["", ".", "..", "../vmlinux", "/etc/passwd", "a/b", "a\nb"] {
        let mut bad = good.clone();
        bad.kernel.file = name.to_owned();
        assert_eq!(
            SetManifest::parse(&bad.to_text().expect("text")),
            Err(ParseError::FileName(name.to_owned()))
        );
        let mut bad = good.clone();
        bad.images.get_mut("python").expect("python").contents = name.to_owned();
        let parsed = SetManifest::parse(&bad.to_text().expect("text"));
        // An empty name of a list of contents means that there is none.
        assert_eq!(parsed.is_ok(), name.is_empty(), "{name:?}");
    }
    for digest in ["", "00", &"g".repeat(64), &"A".repeat(64)] {
        let mut bad = good.clone();
        bad.initramfs.blake3 = digest.to_owned();
        assert!(matches!(SetManifest::parse(&bad.to_text().expect("text")), Err(ParseError::Digest { .. })));
    }
}

#[test]
fn a_set_may_have_kernels_of_other_flavours() {
    let directory = tempfile::tempdir().expect("tempdir");
    let mut manifest = make_set(directory.path(), "0.1.0");
    let old = manifest.to_text().expect("text");
    assert!(!old.contains("kernels"), "a set without them is written as it always was: {old}");
    let set = ImageSet::open(directory.path()).expect("opens");
    assert_eq!(
        set.kernel_of(KernelFlavour::Plain).expect("plain"),
        set.kernel().expect("the same one, for short")
    );
    let error = set.kernel_of(KernelFlavour::Pvm).expect_err("none");
    assert!(matches!(error, ImagesError::MissingKernel { flavour: "pvm", .. }), "{error}");
    assert!(error.to_string().contains("--flavour pvm"), "{error}");

    let kernel = b"another kernel";
    fs::write(directory.path().join("vmlinux-pvm"), kernel).expect("file");
    let part = Part {
        file: "vmlinux-pvm".to_owned(),
        blake3: digest(kernel),
        bytes: kernel.len() as u64,
        source: "linux-source-6.12 6.12.1-1".to_owned(),
    };
    manifest.kernels.insert("pvm".to_owned(), part);
    let text = manifest.to_text().expect("text");
    assert_eq!(SetManifest::parse(&text), Ok(manifest.clone()));
    fs::write(directory.path().join(manifest::FILE_NAME), &text).expect("manifest");
    let set = ImageSet::open(directory.path()).expect("opens");
    assert_eq!(fs::read(set.kernel_of(KernelFlavour::Pvm).expect("there")).expect("read"), kernel);
    set.verify().expect("verifies");
    fs::write(directory.path().join("vmlinux-pvm"), b"another kerneL").expect("file");
    assert!(
        matches!(set.verify(), Err(ImagesError::WrongDigest { path, .. }) if path.ends_with("vmlinux-pvm"))
    );

    let mut bad = manifest.clone();
    bad.kernels.get_mut("pvm").expect("pvm").file = "../vmlinux".to_owned();
    assert!(matches!(SetManifest::parse(&bad.to_text().expect("text")), Err(ParseError::FileName(_))));
    // A flavour that this version does not know is not in its way.
    manifest.kernels.insert("arm".to_owned(), manifest.kernel.clone());
    assert!(SetManifest::parse(&manifest.to_text().expect("text")).is_ok());
}

#[test]
fn an_opened_set_gives_paths_and_lists_languages() {
    let directory = tempfile::tempdir().expect("tempdir");
    make_set(directory.path(), "0.1.0");
    let set = ImageSet::open(directory.path()).expect("opens");
    assert_eq!(fs::read(set.kernel().expect("kernel")).expect("read"), b"a kernel");
    assert_eq!(fs::read(set.initramfs().expect("initramfs")).expect("read"), b"an archive");
    assert_eq!(fs::read(set.image("shell").expect("image")).expect("read"), b"shell");
    assert_eq!(set.languages().collect::<Vec<_>>(), ["python", "shell"]);
    assert!(set.contents("shell").expect("contents").expect("some").ends_with("shell.contents.txt"));
    set.verify().expect("verifies");

    let error = set.image("javascript").expect_err("no such image");
    assert!(
        matches!(&error, ImagesError::MissingLanguage { available, .. } if available == &["python", "shell"])
    );
    assert!(error.to_string().contains("python, shell"), "{error}");
}

#[test]
fn sizes_are_checked_always_and_digests_by_verify() {
    let directory = tempfile::tempdir().expect("tempdir");
    make_set(directory.path(), "0.1.0");
    let set = ImageSet::open(directory.path()).expect("opens");
    fs::write(directory.path().join("python.erofs"), b"pythoN").expect("write");
    assert!(set.image("python").is_ok(), "same size: only the digest can tell");
    assert!(
        matches!(set.verify(), Err(ImagesError::WrongDigest { path, .. }) if path.ends_with("python.erofs"))
    );

    fs::write(directory.path().join("python.erofs"), b"pyth").expect("write");
    let error = set.image("python").expect_err("shorter");
    assert!(matches!(error, ImagesError::WrongSize { expected: 6, found: 4, .. }), "{error}");
    assert!(matches!(set.verify(), Err(ImagesError::WrongSize { .. })));

    fs::remove_file(directory.path().join("python.erofs")).expect("remove");
    assert!(matches!(set.image("python"), Err(ImagesError::Unreadable { .. })));
    fs::create_dir(directory.path().join("python.erofs")).expect("directory");
    assert!(set.image("python").is_err(), "a directory is no image");
}

#[test]
fn the_set_stays_the_same_when_current_moves_on() {
    let directory = tempfile::tempdir().expect("tempdir");
    make_set(&directory.path().join("sets/one"), "1");
    make_set(&directory.path().join("sets/two"), "2");
    let current = directory.path().join("current");
    symlink("sets/one", &current).expect("link");
    let set = ImageSet::open(&current).expect("opens");
    fs::remove_file(&current).expect("unlink");
    symlink("sets/two", &current).expect("link");
    assert!(set.kernel().expect("kernel").ends_with("sets/one/vmlinux"));
}

#[test]
fn bad_manifests_say_what_to_do() {
    let directory = tempfile::tempdir().expect("tempdir");
    let manifest = directory.path().join(manifest::FILE_NAME);
    fs::write(&manifest, r#"{"format": 2}"#).expect("write");
    let error = ImageSet::open(directory.path()).expect_err("format 2");
    assert!(matches!(error, ImagesError::WrongFormat { found: 2, .. }));
    assert!(error.to_string().contains("make images"), "{error}");
    fs::write(&manifest, "{").expect("write");
    assert!(matches!(ImageSet::open(directory.path()), Err(ImagesError::BadManifest { .. })));
    fs::write(&manifest, vec![b' '; usize::try_from(manifest::MAX_BYTES).expect("fits") + 2]).expect("write");
    assert!(matches!(
        ImageSet::open(directory.path()),
        Err(ImagesError::BadManifest { reason, .. }) if reason.contains("1 MiB")
    ));
}

#[test]
fn places_are_searched_in_order() {
    let directory = tempfile::tempdir().expect("tempdir");
    let place = |name: &str| directory.path().join(name);
    for name in ["explicit", "environment", "package", "cache/current"] {
        make_set(&place(name), name);
    }
    let mut lookup = Lookup {
        explicit: Some(place("explicit")),
        environment: Some(place("environment")),
        package: Some(place("package")),
        cache: Some(place("cache")),
    };
    let version = |lookup: &Lookup| lookup.open().map(|set| set.manifest().version.clone());
    assert_eq!(version(&lookup).expect("explicit"), "explicit");
    lookup.explicit = None;
    assert_eq!(version(&lookup).expect("environment"), "environment");
    lookup.environment = None;
    assert_eq!(version(&lookup).expect("package"), "package");
    lookup.package = Some(place("nothing"));
    assert_eq!(version(&lookup).expect("cache"), "cache/current");

    lookup.cache = Some(place("empty"));
    let error = lookup.open().expect_err("nowhere");
    let ImagesError::NotFound { searched } = &error else { panic!("{error}") };
    assert_eq!(searched, &[place("nothing"), place("empty/current")]);
    let message = error.to_string();
    assert!(message.contains("make images") && message.contains("HAYFORK_IMAGES_DIR"), "{message}");
}

#[test]
fn a_named_directory_is_never_passed_over() {
    let directory = tempfile::tempdir().expect("tempdir");
    make_set(&directory.path().join("cache/current"), "cache");
    let missing = directory.path().join("missing");
    let cache = Some(directory.path().join("cache"));
    let explicit = Lookup { explicit: Some(missing.clone()), cache: cache.clone(), ..Lookup::default() };
    assert!(matches!(explicit.open(), Err(ImagesError::NotASet { .. })));
    let environment = Lookup { environment: Some(missing), cache, ..Lookup::default() };
    let error = environment.open().expect_err("missing");
    assert!(error.to_string().contains("HAYFORK_IMAGES_DIR"), "{error}");
}

#[test]
fn the_cache_follows_the_xdg_rules() {
    let cache = |xdg: Option<&str>, home: Option<&str>| {
        cache_directory_from(xdg.map(Into::into), home.map(Into::into))
    };
    assert_eq!(cache(Some("/x"), Some("/h")), Some("/x/hayfork".into()));
    assert_eq!(cache(Some("relative"), Some("/h")), Some("/h/.cache/hayfork".into()));
    assert_eq!(cache(Some(""), Some("/h")), Some("/h/.cache/hayfork".into()));
    assert_eq!(cache(None, None), None);
}
