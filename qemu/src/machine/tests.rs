//! What can be told without QEMU; the rest is in the crate's `tests/`.

use super::*;

const NOTHING: LastWords = LastWords { panic: false, reboot: false };
const PANIC: LastWords = LastWords { panic: true, reboot: false };
const REBOOT: LastWords = LastWords { panic: false, reboot: true };

#[test]
fn ends_are_told_apart() {
    use ExitKind::{Crashed, Killed, Panic, PowerOff};
    use ProcessStatus::{Code, Signal, Unknown};
    for (status, words, killed, kind) in [
        (Code(0), REBOOT, false, PowerOff),
        (Code(0), NOTHING, false, PowerOff),
        (Code(0), PANIC, false, Panic),
        // It ended by itself before the signal came.
        (Code(0), REBOOT, true, PowerOff),
        (Code(0), PANIC, true, Panic),
        (Code(1), NOTHING, false, Crashed),
        (Code(1), PANIC, false, Crashed),
        (Signal(9), NOTHING, true, Killed),
        (Signal(9), PANIC, true, Killed),
        // The host's out-of-memory killer.
        (Signal(9), NOTHING, false, Crashed),
        (Signal(11), NOTHING, false, Crashed),
        (Signal(11), NOTHING, true, Crashed),
        (Unknown, NOTHING, true, Killed),
        (Unknown, PANIC, false, Panic),
        (Unknown, REBOOT, false, PowerOff),
        (Unknown, NOTHING, false, Crashed),
    ] {
        assert_eq!(classify(status, words, killed), kind, "{status:?} {words:?} {killed}");
    }
}

#[test]
fn guest_memory_is_taken_out_of_what_qemu_has() {
    let rollup = "\
55d0c0000000-7ffd3b5f6000 ---p 00000000 00:00 0                          [rollup]
Rss:              142000 kB
Pss:              110000 kB
Pss_Dirty:         95000 kB
Pss_Anon:          25000 kB
Pss_File:          15000 kB
Pss_Shmem:         70000 kB
Shared_Clean:      30000 kB
Shared_Dirty:          0 kB
Private_Clean:     12000 kB
Private_Dirty:    100000 kB
";
    let memory = parse_rollup(rollup).unwrap();
    assert_eq!(memory, HostMemory { overhead: 30_000 << 10, guest: 70_000 << 10, cached: 42_000 << 10 });
    assert_eq!(parse_rollup(""), None);
    assert_eq!(parse_rollup(&rollup.replace("Pss_Shmem", "Pss_Other")), None);
}

#[test]
fn guest_memory_has_its_size_and_keeps_it() {
    let memory = guest_memory(64).unwrap();
    assert_eq!(rustix::fs::fstat(&memory).unwrap().st_size, 64 << 20);
    ftruncate(&memory, 0).unwrap_err();
    ftruncate(&memory, 128 << 20).unwrap_err();
}

#[test]
fn images_that_cannot_be_images_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vmlinux");
    let check = |path: &Path| open_image("kernel", path).and_then(|file| check_kernel(&file, path));
    let message = |path: &Path| {
        let error = check(path).unwrap_err();
        assert_eq!(error.code(), "image_unreadable");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        std::error::Error::source(&error).unwrap().to_string()
    };
    assert!(message(&path).contains("No such file"));
    assert!(message(folder.path()).contains("no regular file"));
    std::fs::write(&path, "").unwrap();
    assert!(message(&path).contains("empty"));
    std::fs::write(&path, "MZ").unwrap();
    assert!(message(&path).contains("ELF"));
    std::fs::write(&path, "MZ\0\0\0").unwrap();
    assert!(message(&path).contains("ELF"));
    std::fs::write(&path, "\x7fELF\x02").unwrap();
    check(&path).unwrap();
}
