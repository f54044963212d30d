//! What whole machines of the monitor cost on this host: time, memory, and bytes over vsock.
//!
//! The guest is the small Linux guest of the tests, whose only program answers the host over vsock, so the figures hold the
//! kernel's boot and nothing of the agent's. Prints medians and the worst of a run; never fails for a figure. Without a
//! usable hypervisor, or without `HAYFORK_IMAGES_DIR`, it says so and ends.

#![allow(missing_docs, clippy::unwrap_used, clippy::cast_precision_loss)] // A benchmark.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/guest/mod.rs"]
mod guest;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod floor;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() {
    // A test runner that asks for its tests gets none.
    if std::env::args().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    measure::all();
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod measure {
    use std::fs::{self, File};
    use std::time::{Duration, Instant};

    use hayfork_vmm::backend::{Backend, KernelFlavour, Machine, MachineSpec};
    use hayfork_vmm::boot::kernel::Kernel;
    use hayfork_vmm::monitor::{Monitor, settle};

    use crate::floor::Floor;
    use crate::guest::{self, Client};

    const BOOTS: usize = 30;
    const BULK: usize = 256 << 20;
    /// Machines at once, to tell one's memory from what the process has anyway.
    const CROWD: u64 = 8;

    pub(crate) fn all() {
        let monitor = Monitor::new();
        let capabilities = match monitor.check() {
            Ok(capabilities) => capabilities,
            Err(error) => return println!("monitor: not measured: {error}"),
        };
        if std::env::var_os("HAYFORK_IMAGES_DIR").is_none() {
            return println!("monitor: not measured: HAYFORK_IMAGES_DIR names no image set");
        }
        let flavour = capabilities.kernel;
        println!("monitor: {}, kernel {flavour:?}", capabilities.description);
        // First, while there is no freed memory that machines could be made of.
        memory(&monitor, &guest::spec("serve", flavour));
        kernel(flavour);
        boots(&monitor, &guest::spec("serve", flavour));
        snapshots(&monitor, &guest::spec("serve", flavour));
        bulk(&monitor, &guest::spec("serve", flavour));
    }

    fn line(what: &str, mut times: Vec<Duration>) {
        times.sort_unstable();
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let (middle, worst) = (times[times.len() / 2], times[times.len() - 1]);
        println!("  {what:<58} {:8.2} ms   worst of {}: {:.2}", millis(middle), times.len(), millis(worst));
    }

    /// Once for each process; guests map what this makes.
    fn kernel(flavour: KernelFlavour) {
        let path = guest::kernel(flavour);
        let load = || {
            let start = Instant::now();
            let kernel = Kernel::load(&mut File::open(&path).unwrap()).unwrap();
            let took = start.elapsed();
            drop(kernel);
            took
        };
        line("loading the kernel, once for each process", (0..10).map(|_| load()).collect());
    }

    fn boots(monitor: &Monitor, spec: &MachineSpec) {
        let (mut created, mut answered, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=BOOTS {
            let start = Instant::now();
            let mut machine = monitor.launch(spec).unwrap();
            let launched = start.elapsed();
            let begun = Instant::now();
            Client::connect(machine.as_mut());
            let up = begun.elapsed();
            let end = Instant::now();
            drop(machine);
            let gone = end.elapsed();
            settle();
            // The first one reads the files.
            if round > 0 {
                created.push(launched);
                answered.push(up);
                dropped.push(gone);
            }
        }
        line("creation, up to the first KVM_RUN", created);
        line("first KVM_RUN to the guest's program answering over vsock", answered);
        line("dropping a running machine", dropped);
    }

    fn snapshots(monitor: &Monitor, spec: &MachineSpec) {
        let mut original = monitor.launch(spec).unwrap();
        let mut client = Client::connect(original.as_mut());
        client.text("keep it");
        let capture = || {
            let start = Instant::now();
            original.capture().unwrap();
            start.elapsed()
        };
        line("keeping a running machine, its whole memory", (0..10).map(|_| capture()).collect());
        let template = original.capture().unwrap();
        let mut first = template.restore_observed().unwrap();
        Client::connect(first.as_mut()).text("kept");
        let set = first.working_set();
        let bytes: u64 = set.iter().map(|range| range.end - range.start).sum();
        println!("  working set of {} KiB in {} ranges", bytes >> 10, set.len());
        let capture = || {
            let start = Instant::now();
            first.capture().unwrap();
            start.elapsed()
        };
        line("keeping a restored machine, what it has written", (0..10).map(|_| capture()).collect());
        let floor = Floor::new(u64::from(spec.memory_mib) << 20, set.clone());
        let costs: Vec<_> = (0..BOOTS).map(|_| floor.one()).collect();
        line(
            "floor of a restore: the hypervisor's calls alone",
            costs.iter().map(|cost| cost.calls).collect(),
        );
        line(
            "floor of a restore: that memory mapped, and those pages copied",
            costs.iter().map(|cost| cost.pages).collect(),
        );
        for (what, template) in [("", &template), (", working set ahead", &template.with_working_set(set))] {
            let (mut made, mut answered, mut lives) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..BOOTS {
                let start = Instant::now();
                let mut machine = template.restore().unwrap();
                made.push(start.elapsed());
                Client::connect(machine.as_mut());
                answered.push(start.elapsed());
                drop(machine);
                settle();
                lives.push(start.elapsed());
            }
            line(&format!("restored, answering, taken apart{what}"), lives);
            line(&format!("restoring a machine{what}"), made);
            line(&format!("restoring until it answers over vsock{what}"), answered);
            let (mut begun, mut made, mut answered) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..BOOTS {
                let start = Instant::now();
                template.prepare().unwrap();
                begun.push(start.elapsed());
                let start = Instant::now();
                let mut machine = template.restore().unwrap();
                made.push(start.elapsed());
                Client::connect(machine.as_mut());
                answered.push(start.elapsed());
                drop(machine);
                settle();
            }
            line(&format!("beginning a machine ahead{what}"), begun);
            line(&format!("restoring one that was begun{what}"), made);
            line(&format!("restoring one that was begun until it answers{what}"), answered);
            let (mut reset, mut answered) = (Vec::new(), Vec::new());
            let mut machine = template.restore().unwrap();
            Client::connect(machine.as_mut()).text("keep something else");
            for _ in 0..BOOTS {
                let start = Instant::now();
                machine.reset().unwrap();
                reset.push(start.elapsed());
                Client::connect(machine.as_mut());
                answered.push(start.elapsed());
            }
            line(&format!("in-place reset{what}"), reset);
            line(&format!("in-place reset until it answers over vsock{what}"), answered);
        }
    }

    /// Anonymous memory of this process, in bytes.
    fn anonymous() -> u64 {
        let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = rollup.lines().find(|line| line.starts_with("Anonymous:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    fn memory(monitor: &Monitor, spec: &MachineSpec) {
        // One that brings what all share, and lives on, so that it leaves nothing to be used again.
        let mut first = monitor.launch(spec).unwrap();
        let mut client = Client::connect(first.as_mut());
        client.drain_from_guest(1 << 20);
        let of_first = |first: &dyn Machine| first.host_memory().unwrap().guest;
        let (before, guest_before) = (anonymous(), of_first(first.as_ref()));
        let mut machines: Vec<Box<dyn Machine>> = (0..CROWD).map(|_| monitor.launch(spec).unwrap()).collect();
        let mut clients: Vec<Client> =
            machines.iter_mut().map(|machine| Client::connect(machine.as_mut())).collect();
        for client in &mut clients {
            // Buffers grow to what a stream makes of them.
            client.drain_from_guest(1 << 20);
        }
        let guests: u64 = machines.iter().map(|machine| machine.host_memory().unwrap().guest).sum();
        let grown = of_first(first.as_ref()) - guest_before;
        let own = (anonymous() - before - guests - grown) / CROWD;
        let mebibytes = |what, bytes: u64| println!("  {what:<58} {:8.2} MiB", bytes as f64 / 1_048_576.0);
        mebibytes("the monitor's own memory for one machine of a crowd", own);
        mebibytes("memory of such a guest", guests / CROWD);
    }

    fn bulk(monitor: &Monitor, spec: &MachineSpec) {
        let mut machine = monitor.launch(spec).unwrap();
        let mut client = Client::connect(machine.as_mut());
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..5 {
            let start = Instant::now();
            client.drain_from_guest(BULK);
            rates[0].push(BULK as f64 / 1e6 / start.elapsed().as_secs_f64());
            let start = Instant::now();
            client.pour_into_guest(BULK);
            rates[1].push(BULK as f64 / 1e6 / start.elapsed().as_secs_f64());
        }
        for (what, mut rates) in ["vsock, guest to host", "vsock, host to guest"].into_iter().zip(rates) {
            rates.sort_unstable_by(f64::total_cmp);
            println!("  {what:<58} {:8.0} MB/s", rates[rates.len() / 2]);
        }
    }
}
