//! The backends that tests run on.

use hayfork_qemu::{AcceleratorChoice, Qemu, QemuOptions};
use hayfork_vmm::backend::{Backend, KernelFlavour, Machine, MachineSpec};

use crate::guest;

/// Where guests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this process.
    Here,
    /// In the monitor's worker processes.
    Worker,
    /// In QEMU's.
    Qemu,
}

/// A backend of this host, and machines for it.
pub(crate) struct Setup {
    backend: Box<dyn Backend>,
    place: Place,
    flavour: KernelFlavour,
    vcpus: u8,
}

impl Setup {
    /// QEMU with the translator, whatever else the host has, so that tests mean the same everywhere; or with KVM if
    /// `HAYFORK_TEST_ACCELERATOR` says so, on a host that has it.
    pub(crate) fn qemu() -> Option<Self> {
        Self::qemu_with(1)
    }

    /// The same with two virtual CPUs in each machine.
    pub(crate) fn qemu_2_vcpus() -> Option<Self> {
        Self::qemu_with(2)
    }

    fn qemu_with(vcpus: u8) -> Option<Self> {
        if !is_wanted("qemu") {
            return None;
        }
        let accelerator = match std::env::var("HAYFORK_TEST_ACCELERATOR").as_deref() {
            Ok("kvm") => AcceleratorChoice::Kvm,
            Ok("tcg") | Err(_) => AcceleratorChoice::Tcg,
            Ok(other) => panic!("HAYFORK_TEST_ACCELERATOR is kvm or tcg, not {other}"),
        };
        let backend = Qemu::new(QemuOptions { accelerator, ..QemuOptions::default() });
        Some(Self { backend: Box::new(backend), place: Place::Qemu, flavour: KernelFlavour::Plain, vcpus })
    }

    /// The monitor; `None`, having said so, on a host without a hypervisor.
    pub(crate) fn monitor() -> Option<Self> {
        Self::monitor_with(1, Place::Here)
    }

    /// The monitor with two virtual CPUs in each machine.
    pub(crate) fn monitor_2_vcpus() -> Option<Self> {
        Self::monitor_with(2, Place::Here)
    }

    /// The monitor in worker processes.
    pub(crate) fn worker() -> Option<Self> {
        Self::monitor_with(1, Place::Worker)
    }

    /// The same with two virtual CPUs in each machine.
    pub(crate) fn worker_2_vcpus() -> Option<Self> {
        Self::monitor_with(2, Place::Worker)
    }

    #[cfg(target_arch = "x86_64")]
    fn monitor_with(vcpus: u8, place: Place) -> Option<Self> {
        use hayfork_vmm::backend::BackendError;
        use hayfork_vmm::hypervisor::probe::{Verdict, probe};

        if !is_wanted("monitor") || !is_wanted_in(place) {
            return None;
        }
        let backend: Box<dyn Backend> = match place {
            Place::Worker => Box::new(workers()),
            _ => Box::new(hayfork_vmm::monitor::Monitor::new()),
        };
        match backend.check() {
            Ok(capabilities) => Some(Self { backend, place, flavour: capabilities.kernel, vcpus }),
            Err(BackendError::AcceleratorUnusable { detail, .. }) => {
                let verdict = probe().verdict;
                let is_usable = matches!(verdict, Verdict::Hardware { .. } | Verdict::KvmPvm { .. });
                assert!(!is_usable, "the probe says that {verdict}, but: {detail}");
                println!("skipped: {detail}");
                None
            }
            Err(error) => panic!("the monitor does not work: {error}"),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn monitor_with(_vcpus: u8, _place: Place) -> Option<Self> {
        println!("skipped: there is no monitor for this processor");
        None
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Whether guests run on the monitor.
    pub(crate) fn is_monitor(&self) -> bool {
        self.place != Place::Qemu
    }

    /// Whether guests run in this process.
    pub(crate) fn is_here(&self) -> bool {
        self.place == Place::Here
    }

    /// A machine that does `test`; see `init.rs`.
    pub(crate) fn spec(&self, test: &str) -> MachineSpec {
        MachineSpec { vcpus: self.vcpus, ..guest::spec(test, self.flavour) }
    }

    /// Launches, and says what is wrong if that fails.
    pub(crate) fn launch(&self, spec: &MachineSpec) -> Box<dyn Machine> {
        self.backend.launch(spec).unwrap()
    }

    /// Launches a machine that does `test`.
    pub(crate) fn start(&self, test: &str) -> Box<dyn Machine> {
        self.launch(&self.spec(test))
    }
}

/// Workers with the program that belongs to these tests.
#[cfg(target_arch = "x86_64")]
pub(crate) fn workers() -> hayfork_vmm::worker::Workers {
    use hayfork_vmm::worker::{Workers, WorkersOptions};
    Workers::new(WorkersOptions { binary: Some(crate::host::program::worker()) })
}

/// Whether the backend of this name is to be tested: unless `HAYFORK_BACKEND` names another.
fn is_wanted(name: &str) -> bool {
    match std::env::var("HAYFORK_BACKEND") {
        Ok(wanted) if !matches!(wanted.as_str(), "" | "auto") && wanted != name => {
            println!("skipped: HAYFORK_BACKEND is {wanted}");
            false
        }
        _ => true,
    }
}

/// Whether the monitor is to be tested there: unless `HAYFORK_ISOLATION` names another place.
fn is_wanted_in(place: Place) -> bool {
    let name = if place == Place::Worker { "worker" } else { "process" };
    match std::env::var("HAYFORK_ISOLATION") {
        Ok(wanted) if !wanted.is_empty() && wanted != name => {
            println!("skipped: HAYFORK_ISOLATION is {wanted}");
            false
        }
        _ => true,
    }
}

/// Makes tests of functions that take a [`Setup`]: one for each of its constructors that is named.
macro_rules! on_backends {
    ($($test:ident: $($backend:ident)*;)*) => {$(
        mod $test {
            $(
                #[test]
                #[ignore = "needs the image set"]
                fn $backend() {
                    if let Some(setup) = $crate::setup::Setup::$backend() {
                        super::$test(&setup);
                    }
                }
            )*
        }
    )*};
}
pub(crate) use on_backends;
