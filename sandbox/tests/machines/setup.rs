//! The backends that tests run on.

use hayfork_qemu::{AcceleratorChoice, Qemu, QemuOptions};
use hayfork_vmm::backend::{Backend, KernelFlavour, Machine, MachineSpec};

use crate::guest;

/// A backend of this host, and machines for it.
pub(crate) struct Setup {
    backend: Box<dyn Backend>,
    flavour: KernelFlavour,
    vcpus: u8,
}

impl Setup {
    /// QEMU with the translator, whatever else the host has, so that tests mean the same everywhere; or with KVM if
    /// `HAYFORK_TEST_ACCELERATOR` says so, on a host that has it.
    pub(crate) fn qemu() -> Option<Self> {
        if !is_wanted("qemu") {
            return None;
        }
        let accelerator = match std::env::var("HAYFORK_TEST_ACCELERATOR").as_deref() {
            Ok("kvm") => AcceleratorChoice::Kvm,
            Ok("tcg") | Err(_) => AcceleratorChoice::Tcg,
            Ok(other) => panic!("HAYFORK_TEST_ACCELERATOR is kvm or tcg, not {other}"),
        };
        let backend = Qemu::new(QemuOptions { accelerator, ..QemuOptions::default() });
        Some(Self { backend: Box::new(backend), flavour: KernelFlavour::Plain, vcpus: 1 })
    }

    /// The monitor; `None`, having said so, on a host without a hypervisor.
    pub(crate) fn monitor() -> Option<Self> {
        Self::monitor_with(1)
    }

    /// The monitor with two virtual CPUs in each machine.
    pub(crate) fn monitor_2_vcpus() -> Option<Self> {
        Self::monitor_with(2)
    }

    #[cfg(target_arch = "x86_64")]
    fn monitor_with(vcpus: u8) -> Option<Self> {
        use hayfork_vmm::backend::BackendError;
        use hayfork_vmm::hypervisor::probe::{Verdict, probe};

        if !is_wanted("monitor") {
            return None;
        }
        let backend = hayfork_vmm::monitor::Monitor::new();
        match backend.check() {
            Ok(capabilities) => {
                Some(Self { backend: Box::new(backend), flavour: capabilities.kernel, vcpus })
            }
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
    fn monitor_with(_vcpus: u8) -> Option<Self> {
        println!("skipped: there is no monitor for this processor");
        None
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Whether guests run in this process.
    pub(crate) fn is_monitor(&self) -> bool {
        self.backend.name() == "monitor"
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
