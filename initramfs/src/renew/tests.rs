use super::*;

fn renewed() -> Renew {
    Renew { seed: [1; 32], machine_id: [0xab; 16], hostname: "box-7".into() }
}

/// A user's root with these files in `/run`.
fn root(files: &[(&str, &str)]) -> (tempfile::TempDir, OwnedFd) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("run")).unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join("run").join(name), text).unwrap();
    }
    let fd = std::fs::File::open(folder.path()).unwrap().into();
    (folder, fd)
}

#[test]
fn the_files_of_the_identity_change_in_place() {
    let (folder, root) = root(&[
        ("machine-id", "00112233445566778899aabbccddeeff\n"),
        ("hostname", "a-much-longer-name\n"),
        ("hosts", "127.0.0.1 localhost a-much-longer-name\n::1 localhost\n"),
    ]);
    let bound = std::fs::File::open(folder.path().join("run/machine-id")).unwrap();
    rename(root.as_fd(), &renewed(), "a-much-longer-name").unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join("run").join(name)).unwrap();
    assert_eq!(read("machine-id"), "ab".repeat(16) + "\n");
    assert_eq!(read("hostname"), "box-7\n");
    assert_eq!(read("hosts"), "127.0.0.1 localhost box-7\n::1 localhost\n");
    // What a bind mount holds on to.
    assert_eq!(std::io::read_to_string(bound).unwrap(), "ab".repeat(16) + "\n");
}

#[test]
fn an_image_without_these_files_is_fine_and_links_lead_nowhere() {
    let (folder, root) = root(&[]);
    rename(root.as_fd(), &renewed(), "sandbox").unwrap();
    assert_eq!(std::fs::read_dir(folder.path().join("run")).unwrap().count(), 0);
    let outside = tempfile::NamedTempFile::new().unwrap();
    std::os::unix::fs::symlink(outside.path(), folder.path().join("run/machine-id")).unwrap();
    assert!(rename(root.as_fd(), &renewed(), "sandbox").is_err());
    assert_eq!(std::fs::read(outside.path()).unwrap(), b"");
}

#[test]
fn only_whole_names_are_replaced() {
    let hosts = "127.0.0.1\tlocalhost sandbox\n# sandbox.example mysandbox\n1.2.3.4 sandbox";
    assert_eq!(
        replace_name(hosts, "sandbox", "b"),
        "127.0.0.1\tlocalhost b\n# sandbox.example mysandbox\n1.2.3.4 b"
    );
    assert_eq!(replace_name("", "sandbox", "b"), "");
}

#[test]
fn no_two_lines_are_alike() {
    let (one, other) = (line().unwrap(), line().unwrap());
    assert_ne!(one, other);
    let seed = one.strip_prefix("renew ").unwrap().strip_suffix('\n').unwrap();
    assert_eq!(seed.len(), 64);
    assert!(seed.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')));
}
