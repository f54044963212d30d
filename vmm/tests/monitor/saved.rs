//! Machines at rest in files: saved in one process, loaded in another.

use std::path::Path;
use std::time::Duration;

use hayfork_vmm::backend::{Backend, ImageDigests, Machine, MachineSpec};

use crate::host::{alone, wait_for};
use crate::tiny::{Act, Host, Script};

const PATIENCE: Duration = Duration::from_secs(60);

/// The file that the other process is to load.
const FILE: &str = "HAYFORK_TEST_SAVED";

/// A guest that goes on saying something.
fn beats() -> Script {
    Script::saying("beat\n", &[Act::Spin { times: 3000 }, Act::Repeat { from: 0, times: 0 }])
}

fn named(host: &Host) -> MachineSpec {
    let mut spec = host.spec("kernel", &beats());
    spec.digests = Some(digests(&spec));
    spec
}

fn digests(spec: &MachineSpec) -> ImageDigests {
    ImageDigests::of_files(&spec.kernel, &spec.initramfs, spec.root_image.as_deref()).unwrap()
}

/// Loads the file, makes two machines of it, and waits until both have said something.
fn go_on(host: &Host, path: &Path) {
    let spec = named(host);
    let root = spec.root_image.as_deref();
    let (template, about) = host.monitor.load(path, &digests(&spec), root).unwrap();
    assert_eq!(about, b"about it");
    let clones: Vec<Box<dyn Machine>> = (0..2).map(|_| template.restore().unwrap()).collect();
    for clone in &clones {
        wait_for(PATIENCE, "a clone's beat", || clone.console_tail().contains("beat"));
        assert!(clone.try_exit().is_none());
    }
}

#[test]
fn a_machine_is_saved_here_and_goes_on_in_another_process() {
    let Some(host) = Host::new() else { return };
    if let Some(path) = std::env::var_os(FILE) {
        go_on(&host, Path::new(&path));
        println!("it goes on");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let machine = host.launch(&named(&host));
    wait_for(PATIENCE, "a beat", || machine.console_tail().contains("beat"));
    machine.capture().unwrap().save(&path, b"about it").unwrap();
    let said = machine.console_tail().len();
    wait_for(PATIENCE, "the original's next beat", || machine.console_tail().len() > said);
    drop(machine);
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["saved::a_machine_is_saved_here_and_goes_on_in_another_process", "--exact", "--nocapture"])
        .env(FILE, &path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("it goes on"), "{text}");
    go_on(&host, &path);
}

#[test]
fn another_root_image_or_kernel_is_refused_before_anything_is_made() {
    let Some(host) = Host::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let spec = named(&host);
    let machine = host.launch(&spec);
    wait_for(PATIENCE, "a beat", || machine.console_tail().contains("beat"));
    machine.capture().unwrap().save(&path, &[]).unwrap();
    let own = digests(&spec);
    let root = spec.root_image.as_deref();
    for (images, root) in [
        (ImageDigests { root: None, ..own.clone() }, None),
        (ImageDigests { root: Some("0".repeat(64)), ..own.clone() }, root),
        (ImageDigests { kernel: "0".repeat(64), ..own.clone() }, root),
    ] {
        let error = host.monitor.load(&path, &images, root).map(drop).unwrap_err();
        assert_eq!(error.code(), "snapshot_foreign", "{error}");
    }
    // The right digest with another file is a lie of the caller's, which the devices notice where they can.
    let (template, _) = host.monitor.load(&path, &own, Some(&spec.kernel)).unwrap();
    let error = template.restore().map(drop).unwrap_err();
    assert_eq!(error.code(), "vm_prepare_failed", "{error}");
}

#[test]
fn loading_and_dropping_leaves_nothing_behind() {
    alone("saved::loading_and_dropping_leaves_nothing_behind", || {
        let Some(host) = Host::new() else { return };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let spec = named(&host);
        let machine = host.launch(&spec);
        machine.capture().unwrap().save(&path, &[]).unwrap();
        let load = || host.monitor.load(&path, &digests(&spec), spec.root_image.as_deref()).unwrap().0;
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        drop(load());
        let before = open();
        for _ in 0..20 {
            let template = load();
            drop(template.restore().unwrap());
            drop(template);
        }
        hayfork_vmm::monitor::settle();
        assert_eq!(open(), before);
    });
}
