//! What this host can do, and what to change: one check for each thing that sandboxes depend on.

use std::fmt::Write as _;
use std::fs;

use hayfork_vmm::backend::{Accelerator, Backend, MIN_MEMORY_MIB};
use serde::Serialize;

use crate::error::Error;
use crate::images::{ImagesError, Lookup};
use crate::options::DEFAULT_MEMORY_PYTHON;

/// The answer of [`Engine::doctor`](crate::Engine::doctor).
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether sandboxes can be created here: no check failed.
    pub usable: bool,
    /// Every check, in the order in which they matter.
    pub checks: Vec<Check>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// A stable lower-case name: `images`, `qemu`, `kvm`, `memory`, `cpus`.
    pub name: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub message: String,
    /// What to do; `None` if all is well.
    pub remedy: Option<String>,
}

/// How a check turned out. Serialised in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but slower or with less than possible.
    Warn,
    /// No sandbox can be created.
    Fail,
}

impl Check {
    fn ok(name: &'static str, message: String) -> Self {
        Self { name, verdict: Verdict::Ok, message, remedy: None }
    }

    fn warn(name: &'static str, message: String, remedy: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, message, remedy: Some(remedy.into()) }
    }

    fn fail(name: &'static str, error: &Error) -> Self {
        Self { name, verdict: Verdict::Fail, message: error.to_string(), remedy: Some(error.remedy()) }
    }
}

impl Report {
    fn new(checks: Vec<Check>) -> Self {
        Self { usable: checks.iter().all(|check| check.verdict != Verdict::Fail), checks }
    }
}

/// The report of an engine that cannot look.
pub(crate) fn unusable(error: &Error) -> Report {
    Report::new(vec![Check::fail("engine", error)])
}

/// Looks at everything. Blocks for up to about a second.
pub(crate) fn examine(backend: &dyn Backend, lookup: &Lookup) -> Report {
    Report::new(vec![images(lookup), machines(backend), kvm(), memory(), cpus()])
}

fn images(lookup: &Lookup) -> Check {
    const NAME: &str = "images";
    let look = || -> Result<(String, Vec<&'static str>), ImagesError> {
        let set = lookup.open()?;
        let manifest = set.manifest();
        set.kernel()?;
        set.initramfs()?;
        let mut message = format!("image set {} in {}: ", manifest.version, set.directory().display());
        // Writing to a String cannot fail.
        let _ = write!(message, "kernel {} ({})", mib(manifest.kernel.bytes), manifest.kernel.source);
        for (language, image) in &manifest.images {
            set.image(language)?;
            let _ = write!(message, ", {language} {}", mib(image.bytes));
        }
        let missing =
            ["python", "javascript", "shell"].into_iter().filter(|name| !manifest.images.contains_key(*name));
        Ok((message, missing.collect()))
    };
    match look() {
        Ok((message, missing)) if missing.is_empty() => Check::ok(NAME, message),
        Ok((message, missing)) => Check::warn(
            NAME,
            format!("{message}; no image for {}", missing.join(", ")),
            "Build the missing images (make images) if these languages are wanted.",
        ),
        Err(error) => Check::fail(NAME, &error.into()),
    }
}

fn machines(backend: &dyn Backend) -> Check {
    match backend.check() {
        Err(error) => Check::fail(backend.name(), &error.into()),
        Ok(found) => {
            let message = format!("{}, accelerator {}", found.description, found.accelerator);
            match found.accelerator {
                // The check of KVM says why and what to do.
                Accelerator::Tcg => Check::warn(
                    backend.name(),
                    format!("{message}: guest code is translated, several times slower than with KVM"),
                    "See the check of KVM.",
                ),
                _ => Check::ok(backend.name(), message),
            }
        }
    }
}

fn kvm() -> Check {
    let verdict = hayfork_qemu::hypervisor();
    let mut message = verdict.to_string();
    if let Some(rate) = verdict.rate() {
        let _ = write!(message, " (measured: {:.1} million guest instructions a second)", rate / 1e6);
    }
    match verdict.remedy() {
        None => Check::ok("kvm", message),
        Some(remedy) => Check::warn("kvm", message, remedy),
    }
}

fn memory() -> Check {
    const NAME: &str = "memory";
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_mib(&text));
    let Some(available) = available else {
        return Check::warn(
            NAME,
            "the free memory is unknown: /proc/meminfo cannot be read".into(),
            "Mount /proc.",
        );
    };
    let message = format!("{available} MiB of memory are available");
    if available < u64::from(2 * DEFAULT_MEMORY_PYTHON) {
        Check::warn(
            NAME,
            message,
            format!("Free some, or create sandboxes with less memory (at least {MIN_MEMORY_MIB} MiB each)."),
        )
    } else {
        Check::ok(NAME, message)
    }
}

fn cpus() -> Check {
    match std::thread::available_parallelism() {
        Ok(count) if count.get() > 1 => Check::ok("cpus", format!("{count} processors may be used")),
        Ok(_) => Check::warn(
            "cpus",
            "one processor may be used".into(),
            "Allow this process a second one: host and guest work at the same time.",
        ),
        Err(error) => {
            Check::warn("cpus", format!("the number of processors is unknown: {error}"), "Nothing.")
        }
    }
}

/// `MemAvailable` of /proc/meminfo, in MiB.
fn available_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

#[allow(clippy::cast_precision_loss)] // a figure for people
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_mib() {
        assert_eq!(available_mib("MemTotal:  9 kB\nMemAvailable:   2097152 kB\n"), Some(2048));
        assert_eq!(available_mib("MemTotal:  9 kB\n"), None);
        assert_eq!(available_mib("MemAvailable: lots\n"), None);
    }

    #[test]
    fn one_failure_makes_a_host_unusable_and_a_warning_does_not() {
        let warning = Check::warn("a", String::new(), "b");
        assert!(Report::new(vec![warning.clone(), Check::ok("c", String::new())]).usable);
        assert!(!Report::new(vec![warning, Check::fail("d", &Error::RootNotGranted)]).usable);
    }
}
