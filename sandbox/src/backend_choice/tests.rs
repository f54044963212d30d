//! The choice, with backends that only answer their check.

use std::sync::Mutex;

use hayfork_vmm::backend::{Accelerator, BackendError, Isolation, KernelFlavour, Machine, MachineSpec};

use super::*;
use crate::images::ImagesError;

type Answer = fn() -> Result<Capabilities, BackendError>;

/// A backend that says this about the host, and launches nothing.
struct Stub {
    name: &'static str,
    answer: Answer,
}

impl Backend for Stub {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check(&self) -> Result<Capabilities, BackendError> {
        (self.answer)()
    }

    fn launch(&self, _: &MachineSpec) -> Result<Box<dyn Machine>, BackendError> {
        Err(BackendError::Killed)
    }
}

const ON_HARDWARE: Answer = || Ok(Capabilities::new("monitor", "the monitor".into(), Accelerator::Kvm));
const ON_KVM_PVM: Answer =
    || Ok(Capabilities::new("monitor", "the monitor".into(), Accelerator::Kvm).on_kvm_pvm());
const REFUSED: Answer = || {
    let detail = "this user may not open /dev/kvm".to_owned();
    Err(BackendError::AcceleratorUnusable { detail, remedy: "Join the group kvm." })
};

fn backend(name: &'static str, answer: Answer) -> Arc<dyn Backend> {
    Arc::new(Stub { name, answer })
}

fn qemu() -> Arc<dyn Backend> {
    backend("qemu", || Ok(Capabilities::new("qemu", "QEMU".into(), Accelerator::Tcg)))
}

fn auto(monitor: Answer) -> Backends {
    Backends::Auto(Ok(backend("monitor", monitor)), qemu())
}

/// An image set with these flavours.
fn set(flavours: &[KernelFlavour]) -> impl Fn(&Capabilities) -> Result<(), Error> {
    move |found| {
        if flavours.contains(&found.kernel) {
            return Ok(());
        }
        let flavour = found.kernel.name();
        Err(ImagesError::MissingKernel { flavour, directory: "/images".into() }.into())
    }
}

const BOTH: &[KernelFlavour] = &[KernelFlavour::Plain, KernelFlavour::Pvm];
const PLAIN: &[KernelFlavour] = &[KernelFlavour::Plain];

#[test]
fn names_are_known_or_refused() {
    let named = |name: Option<&str>| {
        let options = EngineOptions { backend: name.map(str::to_owned), ..EngineOptions::default() };
        Backends::new(&options).map(|backends| backends.name())
    };
    assert_eq!(named(None).unwrap(), "auto");
    for name in ["auto", "monitor", "qemu"] {
        assert_eq!(named(Some(name)).unwrap(), name);
    }
    for name in ["", "QEMU", "docker", "kvm"] {
        let error = named(Some(name)).unwrap_err();
        assert_eq!(error.code(), "bad_option");
        assert!(error.to_string().contains("\"monitor\""), "{error}");
    }
}

#[test]
fn isolations_are_known_or_refused() {
    let named = |backend: Option<&str>, isolation: &str| {
        let isolation = Some(isolation.to_owned());
        let backend = backend.map(str::to_owned);
        Backends::new(&EngineOptions { backend, isolation, ..EngineOptions::default() })
    };
    for backend in [None, Some("auto"), Some("monitor"), Some("qemu")] {
        for isolation in ["auto", "process", "worker"] {
            assert!(named(backend, isolation).is_ok());
        }
        assert_eq!(named(backend, "container").err().unwrap().code(), "bad_option");
    }
}

#[test]
fn the_monitor_is_first_where_the_host_lets_it() {
    for (answer, kernel, isolation) in [
        (ON_HARDWARE, KernelFlavour::Plain, Isolation::Hardware),
        (ON_KVM_PVM, KernelFlavour::Pvm, Isolation::KvmPvm),
    ] {
        for backends in [auto(answer), Backends::One(backend("monitor", answer))] {
            let chosen = backends.choose(set(BOTH)).unwrap();
            assert_eq!(chosen.backend.name(), "monitor");
            assert!(chosen.fallback.is_none());
            assert_eq!((chosen.capabilities.kernel, chosen.capabilities.isolation), (kernel, isolation));
        }
    }
}

#[test]
fn what_stands_in_its_way_is_kept_by_auto_and_an_error_for_the_monitor() {
    for (answer, flavours, code, text) in [
        (REFUSED, BOTH, "accelerator_unusable", "may not open /dev/kvm"),
        (ON_KVM_PVM, PLAIN, "image_kernel_missing", "--flavour pvm"),
    ] {
        let chosen = auto(answer).choose(set(flavours)).expect("QEMU");
        assert_eq!(chosen.backend.name(), "qemu");
        assert_eq!(chosen.capabilities.kernel, KernelFlavour::Plain);
        let reason = chosen.fallback.expect("a reason");
        assert_eq!(reason.code(), code, "{reason}");
        assert!(reason.to_string().contains(text), "{reason}");
        assert!(!reason.remedy().is_empty());

        let error = Backends::One(backend("monitor", answer)).choose(set(flavours)).err().unwrap();
        assert_eq!(error.code(), code);
    }
}

#[test]
fn a_machine_that_only_qemu_can_have_gets_it() {
    let answer: Answer = || {
        let mut found = ON_HARDWARE()?;
        found.max_vcpus = 8;
        Ok(found)
    };
    let large = |found: &Capabilities| {
        if found.max_vcpus < 16 { Err(Error::bad_option("16 are more than 8")) } else { Ok(()) }
    };
    let chosen = auto(answer).choose(large).unwrap();
    assert_eq!(chosen.backend.name(), "qemu");
    assert_eq!(chosen.fallback.unwrap().code(), "bad_option");
}

#[test]
fn a_host_without_a_monitor_uses_qemu_and_says_so() {
    let chosen = Backends::Auto(Err(Error::bad_option("none here")), qemu()).choose(set(BOTH)).unwrap();
    assert_eq!(chosen.backend.name(), "qemu");
    assert_eq!(chosen.fallback.unwrap().to_string(), "none here");
}

#[test]
fn where_nothing_works_the_error_is_that_of_the_last_resort() {
    let missing = backend("qemu", || Err(BackendError::QemuMissing { looked_for: "PATH".into() }));
    let backends = Backends::Auto(Ok(backend("monitor", REFUSED)), missing);
    assert_eq!(backends.choose(set(BOTH)).err().unwrap().code(), "qemu_missing");
}

#[test]
fn qemu_by_name_is_chosen_without_a_look_at_the_monitor() {
    let asked = Mutex::new(Vec::new());
    let chosen = Backends::One(qemu()).choose(|found| {
        asked.lock().unwrap().push(found.kernel);
        Ok(())
    });
    let chosen = chosen.unwrap();
    assert_eq!((chosen.backend.name(), chosen.fallback.is_none()), ("qemu", true));
    assert_eq!(*asked.lock().unwrap(), PLAIN);
}

#[test]
fn a_kernel_that_is_built_meanwhile_is_used() {
    let backends = auto(ON_KVM_PVM);
    assert_eq!(backends.choose(set(PLAIN)).unwrap().backend.name(), "qemu");
    assert_eq!(backends.choose(set(BOTH)).unwrap().backend.name(), "monitor");
}
