//! The choice, with backends that only answer their check.

use std::sync::Mutex;

use hayfork_vmm::backend::{Accelerator, Isolation, Machine, MachineSpec};

use super::*;
use crate::images::ImagesError;

/// A backend that says this about the host, and launches nothing.
struct Stub {
    name: &'static str,
    answer: fn() -> Result<Capabilities, BackendError>,
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

const HARDWARE: fn() -> Verdict = || Verdict::Hardware { rate: 1e9 };
const KVM_PVM: fn() -> Verdict = || Verdict::KvmPvm { rate: 1e6 };

fn backend(name: &'static str, answer: fn() -> Result<Capabilities, BackendError>) -> Arc<dyn Backend> {
    Arc::new(Stub { name, answer })
}

fn qemu() -> Arc<dyn Backend> {
    backend("qemu", || Ok(Capabilities::new("qemu", "QEMU".into(), Accelerator::Tcg)))
}

fn on_hardware() -> Result<Capabilities, BackendError> {
    Ok(Capabilities::new("monitor", "the monitor".into(), Accelerator::Kvm))
}

fn on_kvm_pvm() -> Result<Capabilities, BackendError> {
    on_hardware().map(Capabilities::on_kvm_pvm)
}

fn monitor(hypervisor: fn() -> Verdict, answer: fn() -> Result<Capabilities, BackendError>) -> Monitor {
    Monitor { backend: Ok(backend("monitor", answer)), hypervisor }
}

/// A set that has these flavours and counts what it is asked for.
fn set(flavours: &[KernelFlavour]) -> impl Fn(KernelFlavour) -> Result<(), Error> {
    move |flavour| {
        if flavours.contains(&flavour) {
            return Ok(());
        }
        Err(ImagesError::MissingKernel { flavour: flavour.name(), directory: "/images".into() }.into())
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
    for name in ["auto", "qemu"] {
        assert_eq!(named(Some(name)).unwrap(), name);
    }
    for name in ["", "QEMU", "docker", "kvm"] {
        let error = named(Some(name)).unwrap_err();
        assert_eq!(error.code(), "bad_option");
        assert!(error.to_string().contains("\"monitor\""), "{error}");
    }
    // Whether this version has one or not: never another one in its place.
    match named(Some("monitor")) {
        Ok(name) => assert_eq!(name, "monitor"),
        Err(error) => assert!(error.to_string().contains("monitor"), "{error}"),
    }
}

#[test]
fn the_monitor_is_first_where_the_host_lets_it() {
    for (hypervisor, answer, kernel, isolation) in [
        (HARDWARE, on_hardware as fn() -> _, KernelFlavour::Plain, Isolation::Hardware),
        (KVM_PVM, on_kvm_pvm, KernelFlavour::Pvm, Isolation::KvmPvm),
    ] {
        for backends in [
            Backends::Auto(monitor(hypervisor, answer), qemu()),
            Backends::Monitor(monitor(hypervisor, answer)),
        ] {
            let chosen = backends.choose(set(BOTH)).unwrap();
            assert_eq!(chosen.backend.name(), "monitor");
            assert!(chosen.fallback.is_none());
            assert_eq!((chosen.capabilities.kernel, chosen.capabilities.isolation), (kernel, isolation));
        }
    }
}

#[test]
fn what_stands_in_its_way_is_kept_by_auto_and_an_error_for_the_monitor() {
    let cases: [(fn() -> Verdict, fn() -> _, &[KernelFlavour], &str, &str); 6] = [
        (|| Verdict::Absent, on_hardware, BOTH, "accelerator_unusable", "there is no /dev/kvm"),
        (|| Verdict::NoPermission, on_hardware, BOTH, "accelerator_unusable", "may not open /dev/kvm"),
        (
            || Verdict::Emulating { rate: 1e6 },
            on_hardware,
            BOTH,
            "accelerator_unusable",
            "interprets its guests",
        ),
        (|| Verdict::Broken { detail: "busy".into() }, on_hardware, BOTH, "accelerator_unusable", "busy"),
        (KVM_PVM, on_kvm_pvm, PLAIN, "image_kernel_missing", "--flavour pvm"),
        (HARDWARE, || Err(BackendError::Killed), BOTH, "vm_killed", "killed"),
    ];
    for (hypervisor, answer, flavours, code, text) in cases {
        let chosen = Backends::Auto(monitor(hypervisor, answer), qemu()).choose(set(flavours)).expect("QEMU");
        assert_eq!(chosen.backend.name(), "qemu");
        assert_eq!(chosen.capabilities.kernel, KernelFlavour::Plain);
        let reason = chosen.fallback.expect("a reason");
        assert_eq!(reason.code(), code, "{reason}");
        assert!(reason.to_string().contains(text), "{reason}");
        assert!(!reason.remedy().is_empty());

        let error = Backends::Monitor(monitor(hypervisor, answer)).choose(set(flavours)).err().unwrap();
        assert_eq!(error.code(), code);
    }
}

#[test]
fn a_version_without_a_monitor_uses_qemu_and_says_so() {
    let absent =
        Monitor { backend: Err(Error::bad_option("no monitor here")), hypervisor: || panic!("probed") };
    let chosen = Backends::Auto(absent, qemu()).choose(set(BOTH)).unwrap();
    assert_eq!(chosen.backend.name(), "qemu");
    assert_eq!(chosen.fallback.unwrap().to_string(), "no monitor here");
}

#[test]
fn where_nothing_works_the_error_is_that_of_the_last_resort() {
    let missing = backend("qemu", || Err(BackendError::QemuMissing { looked_for: "PATH".into() }));
    let backends = Backends::Auto(monitor(|| Verdict::Absent, on_hardware), missing);
    assert_eq!(backends.choose(set(BOTH)).err().unwrap().code(), "qemu_missing");
}

#[test]
fn qemu_by_name_and_a_backend_of_the_callers_are_not_probed_for() {
    let asked = Mutex::new(Vec::new());
    let chosen = Backends::One(qemu()).choose(|flavour| {
        asked.lock().unwrap().push(flavour);
        Ok(())
    });
    let chosen = chosen.unwrap();
    assert_eq!((chosen.backend.name(), chosen.fallback.is_none()), ("qemu", true));
    assert_eq!(*asked.lock().unwrap(), PLAIN);
}

#[test]
fn a_kernel_that_is_built_meanwhile_is_used() {
    let backends = Backends::Auto(monitor(KVM_PVM, on_kvm_pvm), qemu());
    assert_eq!(backends.choose(set(PLAIN)).unwrap().backend.name(), "qemu");
    assert_eq!(backends.choose(set(BOTH)).unwrap().backend.name(), "monitor");
}
