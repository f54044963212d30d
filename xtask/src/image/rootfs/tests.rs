//! Tests of the root file system under construction, on archives made here.

use std::os::unix::fs::MetadataExt;

use super::*;

/// Builds tar streams with any entry, also ones that a careful writer would refuse.
struct Stream(tar::Builder<Vec<u8>>);

impl Stream {
    fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    fn entry(mut self, kind: EntryType, name: &str, mode: u32, link: &str, content: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.append(&header, content).expect("append");
        self
    }

    fn directory(self, name: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, name, mode, "", b"")
    }

    fn file(self, name: &str, mode: u32, content: &[u8]) -> Self {
        self.entry(EntryType::Regular, name, mode, "", content)
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, 0o777, target, b"")
    }

    fn unpack(self, base: &Path) -> Result<Root> {
        let mut root = Root::create(base)?;
        root.unpack(self.0.into_inner().expect("stream").as_slice())?;
        Ok(root)
    }
}

/// `/usr/bin/tool`, `/bin -> usr/bin`, `/etc/passwd`, `/var/run -> /run`, `/run`.
fn sample() -> Stream {
    Stream::new()
        .directory("./", 0o755)
        .directory("./usr/", 0o755)
        .directory("./usr/bin/", 0o755)
        .file("./usr/bin/tool", 0o4755, b"a tool")
        .link("./bin", "usr/bin")
        .directory("./etc/", 0o555)
        .file("./etc/passwd", 0o644, b"root\n")
        .directory("./run/", 0o2755)
        .directory("./var/", 0o755)
        .link("./var/run", "/run")
}

fn node(nodes: &[Node], path: &str) -> Option<Node> {
    nodes.iter().find(|node| node.path == path).cloned()
}

#[test]
fn special_bits_and_device_nodes_are_dropped() {
    let directory = tempfile::tempdir().expect("tempdir");
    let stream = sample()
        .directory("./tmp/", 0o1777)
        .entry(EntryType::Char, "./etc/null", 0o666, "", b"")
        .entry(EntryType::Link, "./etc/tool", 0o4755, "./usr/bin/tool", b"");
    let nodes = stream.unpack(&directory.path().join("root")).expect("unpacks").seal().expect("seals");
    assert_eq!(node(&nodes, "/usr/bin/tool").expect("tool").mode, 0o755);
    assert_eq!(node(&nodes, "/run").expect("run").mode, 0o755);
    assert_eq!(node(&nodes, "/tmp").expect("tmp").mode, 0o1777);
    assert_eq!(node(&nodes, "/etc").expect("etc").mode, 0o555);
    assert_eq!(node(&nodes, "/etc/null"), None);
    assert!(matches!(node(&nodes, "/etc/tool").expect("link").kind, Kind::File { bytes: 6, .. }));
    assert_eq!(node(&nodes, "/bin").expect("bin").kind, Kind::Link { target: "usr/bin".to_owned() });
    let paths: Vec<&String> = nodes.iter().map(|node| &node.path).collect();
    assert!(paths.is_sorted());
}

#[test]
fn entries_that_leave_the_root_are_refused() {
    let refused = |stream: Stream| {
        let directory = tempfile::tempdir().expect("tempdir");
        let error = stream.unpack(&directory.path().join("root")).err().expect("refused");
        assert!(fs::read_dir(directory.path()).expect("list").count() == 1, "nothing beside the root");
        format!("{error:#}")
    };
    assert!(refused(sample().file("../evil", 0o644, b"x")).contains("leaves the image"));
    assert!(refused(sample().file("/evil", 0o644, b"x")).contains("leaves the image"));
    // Through a link that the archive brought: `var/run` is no directory of the archive.
    assert!(refused(sample().file("./var/run/evil", 0o644, b"x")).contains("not in the archive"));
    assert!(
        refused(sample().entry(EntryType::Link, "./etc/evil", 0o644, "../outside", b""))
            .contains("leaves the image")
    );
}

#[test]
fn paths_are_followed_inside_the_root() {
    let directory = tempfile::tempdir().expect("tempdir");
    let base = directory.path().join("root");
    let mut root =
        sample().link("./etc/up", "../../../../run").link("./loop", "loop").unpack(&base).expect("unpacks");
    assert_eq!(root.host_path("/bin/tool").expect("path"), base.join("usr/bin/tool"));
    assert_eq!(root.host_path("/var/run/x").expect("path"), base.join("run/x"));
    assert_eq!(root.host_path("/etc/up/x").expect("path"), base.join("run/x"));
    assert!(root.host_path("/loop/x").is_err());
    assert!(root.host_path("/etc/passwd/x").is_err());

    root.file("/var/run/pid", 0o644, &mut b"1".as_slice()).expect("writes");
    assert_eq!(fs::read(base.join("run/pid")).expect("read"), b"1");
    assert!(root.remove("/var/run/pid").expect("removes"));
    assert!(!root.remove("/var/run/pid").expect("nothing there"));
}

#[test]
fn links_are_replaced_and_not_written_through() {
    let directory = tempfile::tempdir().expect("tempdir");
    let outside = directory.path().join("outside");
    fs::write(&outside, b"untouched").expect("write");
    let base = directory.path().join("root");
    let mut root = sample().unpack(&base).expect("unpacks");
    root.link("/etc/resolv.conf", outside.to_str().expect("text")).expect("link");
    root.file("/etc/resolv.conf", 0o644, &mut io::empty()).expect("writes");
    assert_eq!(fs::read(&outside).expect("read"), b"untouched");
    assert_eq!(root.text("/etc/resolv.conf").expect("text"), "");
}

#[test]
fn trees_and_contents_are_removed() {
    let directory = tempfile::tempdir().expect("tempdir");
    let mut root = sample().unpack(&directory.path().join("root")).expect("unpacks");
    root.directory("/var/cache/apt/archives", 0o700).expect("directory");
    assert!(root.directory("/var/../../outside", 0o755).is_err());
    assert!(root.remove("/var/cache/*").expect("removes"));
    assert!(!root.remove("/var/nothing/*").expect("nothing there"));
    assert!(root.remove("/usr").expect("removes"));
    assert!(root.remove("/").is_err());
    let nodes = root.seal().expect("seals");
    assert!(node(&nodes, "/var/cache").is_some() && node(&nodes, "/var/cache/apt").is_none());
    assert!(node(&nodes, "/usr/bin").is_none());
}

#[test]
fn equal_files_are_stored_once() {
    let directory = tempfile::tempdir().expect("tempdir");
    let base = directory.path().join("root");
    let root = sample()
        .file("./etc/a", 0o644, b"the same")
        .file("./etc/b", 0o644, b"the same")
        .file("./etc/c", 0o755, b"the same")
        .unpack(&base)
        .expect("unpacks");
    let nodes = root.seal().expect("seals");
    assert_eq!(node(&nodes, "/etc/a").expect("a").kind, node(&nodes, "/etc/c").expect("c").kind);
    let inode = |name: &str| fs::metadata(base.join("etc").join(name)).expect("metadata").ino();
    assert_eq!(inode("a"), inode("b"));
    assert_ne!(inode("a"), inode("c"));
}

#[test]
fn a_broken_stream_is_an_error() {
    let directory = tempfile::tempdir().expect("tempdir");
    let bytes = sample().file("./etc/big", 0o644, &[1; 4096]).0.into_inner().expect("stream");
    let mut root = Root::create(&directory.path().join("root")).expect("root");
    assert!(root.unpack(&bytes[..bytes.len() - 4096]).is_err());
}
