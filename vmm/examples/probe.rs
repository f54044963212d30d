//! Says what stands behind `/dev/kvm` on this host.

fn main() {
    let probe = hayfork_vmm::hypervisor::probe::probe();
    println!("{}: {} ({:.1} ms)", probe.verdict.code(), probe.verdict, probe.took.as_secs_f64() * 1e3);
    if let Some(remedy) = probe.verdict.remedy() {
        println!("{remedy}");
    }
}
