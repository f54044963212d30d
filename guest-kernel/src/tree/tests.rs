use std::os::unix::fs::symlink;

use super::*;

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("parent")).expect("folder");
    fs::write(path, text).expect("write");
}

/// A tree with one file of each kind that the filter tells apart.
fn sample() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path();
    write(root, "Makefile", "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 9\nEXTRAVERSION =\n");
    write(root, "arch/Kconfig", "x");
    write(root, "arch/x86/Kconfig", "x");
    write(root, "arch/x86/boot/a.S", "x");
    write(root, "arch/arm/crypto/Kconfig", "x");
    write(root, "arch/arm/kernel/a.c", "x");
    write(root, "drivers/gpu/drm/Kconfig.debug", "x");
    write(root, "drivers/gpu/drm/Makefile", "x");
    write(root, "drivers/gpu/drm/drm.c", "x");
    write(root, "drivers/virtio/virtio.c", "x");
    write(root, ".git/config", "x");
    symlink("../virtio/virtio.c", root.join("drivers/gpu/link.c")).expect("link");
    symlink("virtio.c", root.join("drivers/virtio/link.c")).expect("link");
    folder
}

fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    walk(root, |relative, _, _| {
        found.push(relative.to_str().expect("name").to_owned());
        Ok(())
    })
    .expect("walks");
    found
}

const KEPT: [&str; 8] = [
    "Makefile",
    "arch/Kconfig",
    "arch/arm/crypto/Kconfig",
    "arch/x86/Kconfig",
    "arch/x86/boot/a.S",
    "drivers/gpu/drm/Kconfig.debug",
    "drivers/gpu/drm/Makefile",
    "drivers/virtio/link.c",
];

#[test]
fn only_what_a_build_reads_is_kept() {
    let tree = sample();
    let mut wanted = KEPT.to_vec();
    wanted.push("drivers/virtio/virtio.c");
    assert_eq!(files(tree.path()), wanted);
}

#[test]
fn a_copy_has_the_digest_of_its_original() {
    let tree = sample();
    let target = tempfile::tempdir().expect("folder");
    let to = target.path().join("linux");
    let copied = copy(tree.path(), &to, &mut |_| {}).expect("copies");
    assert_eq!(copied, digest(tree.path()).expect("digest"));
    assert_eq!(copied, digest(&to).expect("digest"));
    assert!(!to.join("drivers/gpu/drm/drm.c").exists());
    assert_eq!(fs::read_link(to.join("drivers/virtio/link.c")).expect("link"), Path::new("virtio.c"));
}

#[test]
fn the_digest_sees_what_matters_and_nothing_else() {
    let tree = sample();
    let root = tree.path();
    let first = digest(root).expect("digest");

    write(root, "drivers/gpu/drm/drm.c", "changed");
    write(root, ".git/config", "changed");
    assert_eq!(digest(root).expect("digest"), first, "files that are left out do not count");

    write(root, "drivers/virtio/virtio.c", "changed");
    let second = digest(root).expect("digest");
    assert_ne!(second, first, "contents count");

    fs::set_permissions(root.join("drivers/virtio/virtio.c"), fs::Permissions::from_mode(0o755))
        .expect("mode");
    let third = digest(root).expect("digest");
    assert_ne!(third, second, "the executable bit counts");

    fs::rename(root.join("drivers/virtio/virtio.c"), root.join("drivers/virtio/virtio2.c")).expect("rename");
    assert_ne!(digest(root).expect("digest"), third, "names count");
}

/// The source's tar as Debian packs it: everything below one folder.
fn source_tar(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, text) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, text.as_bytes()).expect("append");
    }
    builder.into_inner().expect("tar")
}

#[test]
fn an_archive_is_filtered_while_it_is_read() {
    let tar = source_tar(&[
        ("linux-source-6.12/Makefile", "m"),
        ("linux-source-6.12/arch/arm64/kernel/a.c", "no"),
        ("linux-source-6.12/arch/x86/Kconfig", "yes"),
        ("linux-source-6.12/sound/core/a.c", "no"),
        ("linux-source-6.12/sound/Kconfig", "yes"),
    ]);
    let target = tempfile::tempdir().expect("folder");
    let mut reports = 0;
    take(&tar[..], target.path(), &mut || reports += 1).expect("unpacks");
    assert_eq!(files(target.path()), ["Makefile", "arch/x86/Kconfig", "sound/Kconfig"]);
    assert!(reports >= 1);
}

#[test]
fn a_damaged_archive_is_an_error() {
    let mut tar = source_tar(&[("linux-source-6.12/Makefile", &"x".repeat(2000))]);
    tar.truncate(1024);
    let target = tempfile::tempdir().expect("folder");
    let outcome = take(&tar[..], target.path(), &mut || {});
    assert!(matches!(outcome, Err(Error::Io { .. } | Error::BadPackage { .. })), "{outcome:?}");
}

#[test]
fn the_feeder_finds_the_source_and_counts_it() {
    let inner = "x".repeat(300_000);
    let outer = source_tar(&[
        ("./usr/share/doc/a", "no"),
        (&format!("./usr/src/{NAME}.tar.xz"), &inner),
        ("./usr/share/doc/b", "no"),
    ]);
    let (read, total) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut to = Vec::new();
    assert!(feed(&outer[..], &mut to, &read, &total).expect("feeds"));
    assert_eq!(to, inner.as_bytes());
    assert_eq!((read.into_inner(), total.into_inner()), (300_000, 300_000));

    let other = source_tar(&[("./usr/src/linux-source-6.1.tar.xz", "x")]);
    let (read, total) = (AtomicU64::new(0), AtomicU64::new(0));
    assert!(!feed(&other[..], &mut Vec::new(), &read, &total).expect("feeds"));
}

#[test]
fn a_file_that_is_no_package_is_an_error() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("a.deb");
    fs::write(&file, "not a package").expect("write");
    let outcome = unpack(&file, &folder.path().join("linux"), &mut |_| {});
    assert!(matches!(outcome, Err(Error::BadPackage { .. } | Error::Io { .. })), "{outcome:?}");
}
