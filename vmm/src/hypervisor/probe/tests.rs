//! The probe against the real device of this host, whatever that is, and against made-up ones.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::*;

/// The verdict is held against what the processor itself says, not against what the probe measured.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn the_verdict_on_this_host_is_true() {
    let probe = probe();
    println!("{probe:?}: {}", probe.verdict);
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap();
    let has_virtualisation = flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    if !has_virtualisation {
        assert!(!probe.verdict.is_hardware(), "no vmx and no svm, so this cannot be hardware: {probe:?}");
    }
    match &probe.verdict {
        Verdict::Hardware { rate } => assert!(*rate >= HARDWARE_RATE),
        Verdict::KvmPvm { rate } | Verdict::Emulating { rate } => {
            assert!(*rate < HARDWARE_RATE);
            assert!(*rate > 1e4, "the guest ran, so it has a rate");
        }
        Verdict::Absent => assert!(!Path::new("/dev/kvm").exists()),
        Verdict::NoPermission => {
            let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
            assert_eq!(opened.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        }
        other => panic!("the probe's guest must run wherever /dev/kvm opens: {other:?}"),
    }
    // Loosely: it takes 20 ms on an idle host, and tests run on busy ones.
    assert!(probe.took < Duration::from_secs(5), "{:?}", probe.took);
    assert_eq!(probe.verdict.remedy().is_none(), probe.verdict.is_hardware());
}

#[test]
fn a_missing_device_is_absent() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(probe_device(&folder.path().join("kvm")).verdict, Verdict::Absent);
    assert_eq!(probe_device(Path::new("/dev/kvm\0")).verdict, Verdict::Absent);
}

#[test]
fn a_file_that_is_no_kvm_is_broken() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    let verdict = probe_device(file.path()).verdict;
    assert!(matches!(&verdict, Verdict::Broken { .. }), "{verdict:?}");
    assert!(verdict.to_string().contains("version -1"), "{verdict}");
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn errors_of_open_are_told_apart() {
    assert_eq!(guest::not_opened(libc_errno::EACCES), Verdict::NoPermission);
    assert_eq!(guest::not_opened(libc_errno::EPERM), Verdict::NoPermission);
    assert_eq!(guest::not_opened(libc_errno::ENOENT), Verdict::Absent);
    assert_eq!(guest::not_opened(libc_errno::ENXIO), Verdict::Absent);
    assert!(matches!(guest::not_opened(libc_errno::EMFILE), Verdict::Broken { .. }));
    assert!(Verdict::NoPermission.remedy().unwrap().contains("kvm"));
}

/// Numbers of Linux on x86-64 (asm-generic/errno-base.h).
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod libc_errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const ENXIO: i32 = 6;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EMFILE: i32 = 24;
}
