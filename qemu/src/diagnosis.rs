//! Turns an exit of QEMU before the agent answered into the error that says what to do.

use hayfork_vmm::backend::{BackendError, ExitKind, ExitReport};

use crate::binary::Binary;

/// What a QEMU says that was built without a part hayfork needs, and what that part is.
const MISSING_PARTS: [(&str, &str); 6] = [
    ("unsupported machine type", "it was built without the microvm machine"),
    ("no option group 'sandbox'", "it was built without seccomp"),
    ("-sandbox support is not enabled", "it was built without seccomp"),
    ("seccomp support is disabled", "it was built without seccomp"),
    ("is not a valid device model name", "it was built without a virtio-mmio device"),
    ("invalid accelerator", "it was built without the accelerator"),
];

/// The error for a guest that is gone although it was needed.
pub(crate) fn error(binary: &Binary, report: ExitReport) -> BackendError {
    if report.kind == ExitKind::Crashed {
        let stderr = report.stderr_tail.to_lowercase();
        if let Some((_, part)) = MISSING_PARTS.iter().find(|(said, _)| stderr.contains(said)) {
            let detail = format!("{part}: {}", report.stderr_tail.trim());
            return BackendError::QemuUnusable { path: binary.path.clone(), detail };
        }
    }
    report.into_error()
}

#[cfg(test)]
mod tests {
    use hayfork_vmm::backend::ProcessStatus;

    use super::*;
    use crate::binary::OLDEST;

    fn diagnose(kind: ExitKind, stderr: &str) -> BackendError {
        let report = ExitReport {
            kind,
            status: ProcessStatus::Code(1),
            console_tail: String::new(),
            stderr_tail: stderr.to_owned(),
        };
        error(&Binary { path: "/opt/qemu".into(), version: OLDEST }, report)
    }

    #[test]
    fn a_qemu_without_a_part_is_unusable() {
        let error =
            diagnose(ExitKind::Crashed, "qemu: unsupported machine type\nUse -machine help to list\n");
        assert_eq!(error.code(), "qemu_unusable");
        assert!(error.to_string().contains("/opt/qemu") && error.to_string().contains("microvm"), "{error}");
        assert_eq!(
            diagnose(
                ExitKind::Crashed,
                "qemu: -device virtio-rng-device: 'virtio-rng-device' is not a valid device model name"
            )
            .code(),
            "qemu_unusable"
        );
        assert_eq!(
            diagnose(ExitKind::Crashed, "qemu: There is no option group 'sandbox'").code(),
            "qemu_unusable"
        );
    }

    #[test]
    fn other_ends_keep_their_meaning() {
        assert_eq!(diagnose(ExitKind::Crashed, "qemu: cannot set up guest memory").code(), "vm_exited");
        assert_eq!(diagnose(ExitKind::Panic, "").code(), "kernel_panic");
        assert_eq!(diagnose(ExitKind::PowerOff, "unsupported machine type").code(), "guest_powered_off");
    }
}
