//! What this host can do, and what to change: one check for each thing that sandboxes depend on.

use std::fmt::Write as _;
use std::fs;

use hayfork_vmm::backend::{Accelerator, Capabilities, Isolation, MIN_MEMORY_MIB, Place};
use hayfork_vmm::hypervisor::probe as hypervisor;
use serde::Serialize;

use crate::backend_choice::{Backends, Chosen};
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
    /// A stable lower-case name: `images`, `backend`, `isolation`, `kvm`, `memory`, `cpus`.
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
pub(crate) fn examine(backends: &Backends, lookup: &Lookup) -> Report {
    let mut checks = vec![images(lookup)];
    checks.extend(machines(backends, lookup));
    checks.extend([kvm(hypervisor::verdict()), memory(), cpus()]);
    Report::new(checks)
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
        for (flavour, kernel) in &manifest.kernels {
            let _ = write!(message, ", kernel {flavour} {}", mib(kernel.bytes));
        }
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

/// What would run the next machine, and what would then keep its user code from the host.
fn machines(backends: &Backends, lookup: &Lookup) -> Vec<Check> {
    const NAME: &str = "backend";
    // Without a set there is nothing to choose by; the check of the images says so.
    let set = lookup.open().ok();
    let suits = |found: &Capabilities| match &set {
        Some(set) => set.kernel_of(found.kernel).map(drop).map_err(Error::from),
        None => Ok(()),
    };
    let Chosen { capabilities, fallback, .. } = match backends.choose(suits) {
        Ok(chosen) => chosen,
        Err(error) => return vec![Check::fail(NAME, &error)],
    };
    let mut message = format!(
        "{}: {}, accelerator {}, kernel {}",
        capabilities.backend, capabilities.description, capabilities.accelerator, capabilities.kernel
    );
    let is_slow = capabilities.accelerator == Accelerator::Tcg;
    if is_slow {
        message.push_str("; guest code is translated, several times slower than with KVM");
    }
    // Writing to a String cannot fail.
    let _ = fallback.as_ref().map(|reason| write!(message, "; not the monitor: {reason}"));
    let backend = match fallback {
        Some(obstacle) => Check::warn(NAME, message, obstacle.remedy()),
        // The check of KVM says why and what to do.
        None if is_slow => Check::warn(NAME, message, "See the check of KVM."),
        None => Check::ok(NAME, message),
    };
    let Capabilities { isolation: kind, place, machines_in_process, .. } = capabilities;
    vec![backend, isolation(kind, place, machines_in_process)]
}

fn isolation(isolation: Isolation, place: Place, most: Option<usize>) -> Check {
    const NAME: &str = "isolation";
    let mut message = format!("{}: {}; {}", isolation.code(), isolation.description(), place.description());
    if let Some(most) = most {
        // Writing to a String cannot fail.
        let _ = write!(
            message,
            ", for {most} machines at once; for further ones, {}",
            Place::Worker.description()
        );
    }
    match isolation {
        Isolation::Emulation => Check::warn(
            NAME,
            message,
            "Where code may be hostile, use a host with hardware virtualisation: QEMU's makers do not promise that its \
             translator holds.",
        ),
        Isolation::KvmPvm => Check::warn(
            NAME,
            message,
            "Good for development. Where code may be hostile, use a host with hardware virtualisation.",
        ),
        _ => Check::ok(NAME, message),
    }
}

fn kvm(verdict: &hypervisor::Verdict) -> Check {
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
    fn what_isolates_is_named_and_is_well_with_hardware_only() {
        for (kind, verdict, words) in [
            (Isolation::Hardware, Verdict::Ok, "another one before it"),
            (Isolation::Emulation, Verdict::Warn, "emulator in a process of its own"),
            (Isolation::KvmPvm, Verdict::Warn, "the only wall"),
        ] {
            let check = isolation(kind, Place::Worker, None);
            assert!(check.message.contains("a worker process of its own"), "{check:?}");
            assert_eq!((check.name, check.verdict), ("isolation", verdict));
            assert!(check.message.starts_with(kind.code()) && check.message.contains(words), "{check:?}");
            assert_eq!(check.remedy.is_none(), verdict == Verdict::Ok);
        }
    }

    #[test]
    fn who_gets_workers_beyond_a_number_is_told_it() {
        let message = isolation(Isolation::Hardware, Place::ThisProcess, Some(16)).message;
        assert!(
            message.contains("this process, with all that it may do, for 16 machines at once;"),
            "{message}"
        );
        assert!(message.ends_with("killed if it tries"), "{message}");
    }

    #[test]
    fn what_stands_behind_dev_kvm_is_said_with_its_remedy() {
        use hypervisor::Verdict::{Hardware, KvmPvm, NoPermission};
        assert_eq!(kvm(&Hardware { rate: 1e9 }).verdict, Verdict::Ok);
        for verdict in [KvmPvm { rate: 1.2e6 }, NoPermission] {
            let check = kvm(&verdict);
            assert_eq!(check.verdict, Verdict::Warn);
            assert_eq!(check.remedy.as_deref(), verdict.remedy());
        }
    }

    #[test]
    fn one_failure_makes_a_host_unusable_and_a_warning_does_not() {
        let warning = Check::warn("a", String::new(), "b");
        assert!(Report::new(vec![warning.clone(), Check::ok("c", String::new())]).usable);
        assert!(!Report::new(vec![warning, Check::fail("d", &Error::RootNotGranted)]).usable);
    }
}
