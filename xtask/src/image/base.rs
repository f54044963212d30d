//! What every root image has and has not, whatever its recipe says.

use anyhow::{Result, ensure};

use super::rootfs::{Kind, Node, Root};

/// The account that user code runs as, uid and gid 1000, without a password.
const USER: &str = "user:*:1000:1000::/home/user:/bin/bash\n";
const GROUP: &str = "user:*:1000:\n";

/// Directories with their permissions that the agent mounts something on. `/usr/lib/hayfork` gets the
/// language drivers.
const MOUNT_POINTS: [(&str, u32); 9] = [
    ("/dev", 0o755),
    ("/dev/shm", 0o1777),
    ("/home/user", 0o755),
    ("/proc", 0o555),
    ("/run", 0o755),
    ("/sys", 0o555),
    ("/tmp", 0o1777),
    ("/usr/lib/hayfork", 0o755),
    ("/var/tmp", 0o1777),
];

/// Records of the installation, caches, logs, identity of the machine, documentation, and configuration of
/// services that never run here. What is not there is passed over.
const REMOVED: [&str; 47] = [
    "/boot",
    "/dev/*",
    "/etc/.pwd.lock",
    "/etc/apt",
    "/etc/cron.daily",
    "/etc/cron.weekly",
    "/etc/default",
    "/etc/dpkg",
    "/etc/group-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/init.d",
    "/etc/kernel",
    "/etc/logrotate.d",
    "/etc/machine-id",
    "/etc/motd",
    "/etc/pam.conf",
    "/etc/pam.d",
    "/etc/passwd-",
    "/etc/rc0.d",
    "/etc/rc1.d",
    "/etc/rc2.d",
    "/etc/rc3.d",
    "/etc/rc4.d",
    "/etc/rc5.d",
    "/etc/rc6.d",
    "/etc/rcS.d",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/systemd",
    "/etc/update-motd.d",
    "/run/*",
    "/tmp/*",
    "/usr/lib/systemd",
    "/usr/share/bash-completion",
    "/usr/share/bug",
    "/usr/share/doc-base",
    "/usr/share/info",
    "/usr/share/lintian",
    "/usr/share/locale",
    "/usr/share/man",
    "/var/backups/*",
    "/var/cache/*",
    "/var/lib/apt",
    "/var/lib/dpkg",
    "/var/lib/systemd",
    "/var/log/*",
];

/// Removes what no image has.
///
/// # Errors
/// Removing fails.
pub(super) fn clean(root: &mut Root) -> Result<()> {
    for path in REMOVED {
        root.remove(path)?;
    }
    Ok(())
}

/// Adds what every image has.
///
/// # Errors
/// Writing fails, or the image has no /etc/passwd.
pub(super) fn furnish(root: &mut Root) -> Result<()> {
    for (path, mode) in MOUNT_POINTS {
        root.directory(path, mode)?;
    }
    for (path, line) in [("/etc/passwd", USER), ("/etc/group", GROUP)] {
        let text = root.text(path)?;
        ensure!(!text.lines().any(|line| line.starts_with("user:")), "{path} has an account `user` already");
        root.file(path, 0o644, &mut (text + line).as_bytes())?;
    }
    let hosts = "127.0.0.1 localhost sandbox\n::1 localhost\n";
    // The machine's id is the agent's to make; it needs a place for it. The one of the machine that built the image has gone.
    let files = [
        ("/etc/hosts", hosts),
        ("/etc/hostname", "sandbox\n"),
        ("/etc/machine-id", ""),
        ("/etc/resolv.conf", ""),
    ];
    for (path, text) in files {
        root.file(path, 0o644, &mut text.as_bytes())?;
    }
    Ok(())
}

/// Looks at the finished image once more: the promises of this module, and no special bits.
///
/// # Errors
/// A promise is broken.
pub(super) fn check(nodes: &[Node]) -> Result<()> {
    let find = |path: &str| nodes.iter().find(|node| node.path == path);
    for (path, mode) in MOUNT_POINTS {
        let node = find(path).filter(|node| node.kind == Kind::Directory && node.mode == mode);
        ensure!(node.is_some(), "the image lacks the directory {path} with mode {mode:o}");
        let prefix = format!("{path}/");
        let hidden = nodes.iter().find(|node| {
            node.path.starts_with(&prefix) && !MOUNT_POINTS.iter().any(|(point, _)| *point == node.path)
        });
        ensure!(
            hidden.is_none(),
            "{} would be hidden by what is mounted on {path}",
            hidden.map_or("", |n| &n.path)
        );
    }
    for path in ["/etc/passwd", "/etc/hosts", "/etc/hostname", "/etc/machine-id", "/etc/resolv.conf"] {
        ensure!(
            find(path).is_some_and(|node| matches!(node.kind, Kind::File { .. })),
            "the image lacks {path}"
        );
    }
    for node in nodes {
        let special = node.mode & 0o6000 != 0;
        ensure!(!special, "{} has a set-user-id or set-group-id bit", node.path);
        let writable =
            node.mode & 0o002 != 0 && node.mode & 0o1000 == 0 && !matches!(node.kind, Kind::Link { .. });
        ensure!(!writable, "{} may be written by everybody", node.path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn furnished(directory: &std::path::Path) -> Root {
        let mut root = Root::create(&directory.join("root")).expect("root");
        root.directory("/etc", 0o755).expect("directory");
        root.directory("/dev/pts", 0o755).expect("directory");
        root.file("/etc/passwd", 0o644, &mut b"root:*:0:0:root:/root:/bin/bash\n".as_slice()).expect("file");
        root.file("/etc/group", 0o644, &mut b"root:*:0:\n".as_slice()).expect("file");
        root.file("/etc/machine-id", 0o644, &mut b"1234\n".as_slice()).expect("file");
        clean(&mut root).expect("cleans");
        furnish(&mut root).expect("furnishes");
        root
    }

    fn root_text(directory: &std::path::Path, path: &str) -> String {
        std::fs::read_to_string(directory.join("root").join(path)).expect("text")
    }

    #[test]
    fn a_furnished_root_passes_the_check() {
        let directory = tempfile::tempdir().expect("tempdir");
        let root = furnished(directory.path());
        assert!(root.text("/etc/passwd").expect("text").ends_with(USER));
        let nodes = root.seal().expect("seals");
        check(&nodes).expect("passes");
        assert!(!nodes.iter().any(|node| node.path == "/dev/pts"));
        assert_eq!(root_text(directory.path(), "etc/machine-id"), "", "not the builder's");
    }

    #[test]
    fn the_check_finds_what_is_wrong() {
        let directory = tempfile::tempdir().expect("tempdir");
        let good = furnished(directory.path()).seal().expect("seals");
        let broken = |change: &dyn Fn(&mut Vec<Node>)| {
            let mut nodes = good.clone();
            change(&mut nodes);
            check(&nodes).expect_err("broken").to_string()
        };
        let file = |path: &str, mode| Node {
            path: path.to_owned(),
            mode,
            kind: Kind::File { bytes: 0, blake3: String::new() },
        };
        assert!(broken(&|nodes| nodes.retain(|node| node.path != "/home/user")).contains("/home/user"));
        assert!(broken(&|nodes| nodes.push(file("/usr/bin/su", 0o4755))).contains("/usr/bin/su"));
        assert!(broken(&|nodes| nodes.push(file("/etc/open", 0o666))).contains("/etc/open"));
        assert!(broken(&|nodes| nodes.push(file("/run/lost", 0o644))).contains("/run/lost"));
    }

    #[test]
    fn an_account_of_that_name_is_not_doubled() {
        let directory = tempfile::tempdir().expect("tempdir");
        let mut root = furnished(directory.path());
        assert!(furnish(&mut root).is_err());
    }
}
