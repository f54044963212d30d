//! Finding, with scripts that play QEMU; the real one is used in the crate's `tests/`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;

/// A folder with a script in place of QEMU.
fn fake(script: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(BINARY_NAME);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    (folder, path)
}

fn version(major: u32, minor: u32, patch: u32) -> Version {
    Version { major, minor, patch }
}

#[test]
fn versions_are_read_as_distributions_print_them() {
    let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022";
    assert_eq!(parse_version(debian), Some(version(7, 2, 22)));
    assert_eq!(parse_version("QEMU emulator version 10.0.2 (qemu-10.0.2-1.fc42)"), Some(version(10, 0, 2)));
    assert_eq!(parse_version("QEMU emulator version 9.1.50 (v9.1.0-1-gabc)"), Some(version(9, 1, 50)));
    assert_eq!(parse_version("QEMU emulator version 8.2"), Some(version(8, 2, 0)));
    assert_eq!(parse_version("QEMU emulator version 11.0.0-rc1"), Some(version(11, 0, 0)));
    assert_eq!(parse_version("QEMU emulator version x"), None);
    assert_eq!(parse_version("QEMU emulator version 99999999999.1"), None);
    assert_eq!(parse_version("BusyBox v1.36"), None);
    assert_eq!(parse_version(""), None);
}

#[test]
fn versions_are_ordered_by_number_not_by_text() {
    assert!(version(10, 0, 0) > OLDEST && version(7, 10, 0) > OLDEST && version(7, 2, 0) >= OLDEST);
    assert!(version(7, 1, 99) < OLDEST && version(6, 9, 0) < OLDEST);
}

#[test]
fn the_explicit_path_goes_before_the_variable_and_that_before_the_search_path() {
    let (_a, explicit) = fake("");
    let (_b, variable) = fake("");
    let (folder, searched) = fake("");
    let search_path = env::join_paths([Path::new("/nonexistent"), Path::new("."), folder.path()]).unwrap();
    let mut places = Places {
        explicit: Some(&explicit),
        variable: Some(variable.as_os_str()),
        search_path: Some(&search_path),
    };
    assert_eq!(locate(&places).unwrap(), explicit);
    places.explicit = None;
    assert_eq!(locate(&places).unwrap(), variable);
    places.variable = Some(OsStr::new(""));
    assert_eq!(locate(&places).unwrap(), searched);
    places.variable = None;
    assert_eq!(locate(&places).unwrap(), searched);
}

#[test]
fn what_is_not_there_is_named() {
    let missing = |explicit: Option<&Path>, variable: Option<&str>, search_path: Option<&str>| {
        let places =
            Places { explicit, variable: variable.map(OsStr::new), search_path: search_path.map(OsStr::new) };
        let error = locate(&places).unwrap_err();
        assert_eq!(error.code(), "qemu_missing");
        error.to_string()
    };
    assert!(missing(Some(Path::new("/nonexistent/q")), None, Some("/usr/bin")).contains("/nonexistent/q"));
    assert!(missing(None, Some("/nonexistent/v"), Some("/usr/bin")).contains(BINARY_VARIABLE));
    let folder = tempfile::tempdir().unwrap();
    assert!(missing(None, None, folder.path().to_str()).contains(folder.path().to_str().unwrap()));
    missing(None, None, None);
    // A folder of that name and a file that nobody may execute are passed over.
    fs::create_dir(folder.path().join(BINARY_NAME)).unwrap();
    missing(None, None, folder.path().to_str());
    let (folder, path) = fake("");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    missing(None, None, folder.path().to_str());
}

#[test]
fn an_old_qemu_is_too_old() {
    let (_folder, path) = fake("echo 'QEMU emulator version 6.2.0 (Debian 1:6.2+dfsg-2ubuntu6)'");
    match find(Some(&path)).unwrap_err() {
        BackendError::QemuTooOld { path: named, found, needed } => {
            assert_eq!((named, found.as_str(), needed.as_str()), (path, "6.2.0", "7.2.0"));
        }
        other => panic!("{other:?}"),
    }
    let (_folder, path) = fake("echo 'QEMU emulator version 7.2.0'");
    assert_eq!(find(Some(&path)).unwrap().version, OLDEST);
}

#[test]
fn what_does_not_work_says_what_it_did() {
    let unusable = |script: &str| {
        let (_folder, path) = fake(script);
        let error = find(Some(&path)).unwrap_err();
        assert_eq!(error.code(), "qemu_unusable", "{error}");
        error.to_string()
    };
    assert!(unusable("echo 'error while loading shared libraries: libfdt' >&2; exit 127").contains("libfdt"));
    assert!(unusable("echo hello").contains("hello"));
    let said = unusable("kill -SEGV $$");
    assert!(said.contains("signal 11"), "{said}");
}

#[test]
fn one_that_does_not_answer_is_killed() {
    for script in ["exec sleep 100", "while :; do echo QEMU; sleep 0.01; done"] {
        let (_folder, path) = fake(script);
        let error = ask_version(&path, Duration::from_millis(300)).unwrap_err();
        assert!(error.to_string().contains("no answer to --version within 0.3 s"), "{error}");
    }
}

#[test]
fn qemu_sees_nothing_of_this_process() {
    let (folder, path) = fake("");
    let seen = folder.path().join("seen");
    let script = format!(
        "#!/bin/sh\n{{ /usr/bin/env; ls /proc/$$/fd; pwd; }} > {}\necho 'QEMU emulator version 8.0.0'\n",
        seen.display()
    );
    fs::write(&path, script).unwrap();
    // One descriptor that would be inherited if nothing were done about it.
    let leak = fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
    find(Some(&path)).unwrap();
    let seen = fs::read_to_string(seen).unwrap();
    let lines: Vec<&str> = seen.lines().collect();
    // The shell adds PWD and the like for itself; what this process has, HOME above all, is not there.
    assert!(!lines.iter().any(|line| line.starts_with("HOME=") || line.starts_with("CARGO")), "{seen}");
    let leaked = std::os::fd::AsRawFd::as_raw_fd(&leak).to_string();
    assert!(!lines.contains(&leaked.as_str()), "descriptor {leaked} was inherited: {seen}");
    assert_eq!(lines.last(), Some(&"/"));
}
