//! Machines that are used again in their place: nothing of the last guest is left, and the next one works.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use hayfork_vmm::backend::{Backend, BackendError, MIN_MEMORY_MIB};
use hayfork_vmm::boot::kernel::Kernel;
use hayfork_vmm::hypervisor::kvm::{KvmHypervisor, KvmVm};
use hayfork_vmm::hypervisor::x86_64::VcpuState;
use hayfork_vmm::machine::{Blueprint, DevicesState, Template};
use hayfork_vmm::memory::{PAGE, SealedImage};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use crate::host::{Holdings, alone, or_in_rig, wait_for};
use crate::tiny::driver::{Rings, bring_up, notify};
use crate::tiny::{Act, DATA, Host, Script, device, say, write};

type Machine = hayfork_vmm::machine::Machine<KvmVm>;

const PATIENCE: Duration = Duration::from_secs(60);

/// Where the guest waits for a word to go on.
const GO: u64 = DATA + 0x800;
const READY: &str = "ready\n";
const SECRET: &str = "SECRET-OF-THE-TENANT\n";
const WORD: u64 = 0x5e_c2e7_0f7e_4a47;

/// A guest that makes its devices ready and waits. When it may go on, it leaves traces everywhere, for ever.
fn script() -> Script {
    let rings = |number: u64| Rings::at(DATA + 0x1000 * (1 + number));
    let mut acts = vec![say(DATA, READY)];
    acts.extend(bring_up(2, &[(0, rings(0)), (1, rings(1))]));
    acts.push(Act::Await { at: GO, value: 1 });
    let waits = acts.len();
    acts.push(say(DATA + 0x100, SECRET));
    acts.extend((0..200).map(|page| Act::Write {
        width: 8,
        at: 0x80_0000 + page * 0x3008,
        value: WORD,
        times: 1,
    }));
    // The console's queues somewhere else, in use; the other devices in between their states.
    acts.extend(bring_up(2, &[(1, rings(7))]));
    acts.push(notify(2, 1, 3));
    acts.extend(bring_up(0, &[(0, rings(8)), (1, rings(9))]));
    acts.push(notify(0, 1, 3));
    acts.push(write(device(1) + 0x70, 3));
    acts.push(write(device(3) + 0x24, 7));
    // The serial port's registers: scratch, divisor.
    for (port, value) in [(0x3ff, 0x5e), (0x3fb, 0x83), (0x3f8, 0x5e), (0x3fb, 3), (0x3f9, 0xf)] {
        acts.push(Act::Out { port, value, times: 1 });
    }
    acts.extend([say(DATA + 0x100, SECRET), Act::Spin { times: 100 }]);
    acts.push(Act::Repeat { from: waits, times: 0 });
    let data = vec![(DATA, READY.into()), (DATA + 0x100, SECRET.into()), (GO, vec![0; 2])];
    Script { acts, data }
}

struct Bench {
    hypervisor: KvmHypervisor,
    template: Template,
    _host: Host,
}

impl Bench {
    /// A template of a guest that waits; `None` where there is no hypervisor.
    fn new() -> Option<Self> {
        let host = Host::new()?;
        let spec = host.spec("kernel", &script());
        let open = |path: &std::path::Path| File::open(path).unwrap();
        let blueprint = Blueprint {
            ram: u64::from(MIN_MEMORY_MIB) << 20,
            vcpus: 1,
            kernel: Arc::new(Kernel::load(&mut open(&spec.kernel)).unwrap()),
            initramfs: Arc::new(SealedImage::of_file("initramfs", &open(&spec.initramfs)).unwrap()),
            initramfs_len: 4,
            root: spec.root_image.as_deref().map(open),
            command_line: String::new(),
            console_bytes: 4096,
        };
        let hypervisor = KvmHypervisor::open().unwrap();
        let original = Machine::start(&hypervisor, blueprint).unwrap();
        wait_for(PATIENCE, "the guest", || original.console_tail().contains("ready"));
        wait_for(PATIENCE, "the console", || {
            let state = original.capture().unwrap();
            state.state().devices.transports[2].status == 0xf
        });
        // From the last register access to the wait.
        std::thread::sleep(Duration::from_millis(50));
        let template = original.capture().unwrap();
        let pages = original.written(4).unwrap();
        Some(Self { hypervisor, template: template.with_working_set(pages), _host: host })
    }

    fn restore(&self) -> Machine {
        Machine::resume_from(&self.hypervisor, &self.template).unwrap()
    }

    fn reset(&self, machine: &mut Machine) {
        machine.reset_to(&self.template).unwrap();
    }
}

fn bytes(machine: &Machine) -> Vec<u8> {
    let ram = machine.ram().unwrap();
    let mut all = vec![0; usize::try_from(ram.len()).unwrap()];
    let mut at = 0;
    for region in ram.memory().iter() {
        let size = usize::try_from(region.len()).unwrap();
        ram.memory().read_slice(&mut all[at..at + size], region.start_addr()).unwrap();
        at += size;
    }
    all
}

/// How often [`WORD`] is there; it is only ever written to multiples of 8.
fn traces(memory: &[u8]) -> usize {
    memory.chunks_exact(8).filter(|word| *word == WORD.to_le_bytes()).count()
}

/// Lets the guest go on, and plants more than it can by itself.
fn let_a_tenant_in(machine: &Machine) {
    let memory = machine.ram().unwrap().memory();
    memory.write_obj(1u16, GuestAddress(GO)).unwrap();
    wait_for(PATIENCE, "the tenant", || machine.console_tail().matches("SECRET").count() > 3);
    // Into every page of a range, as a device or a neighbour would, those included that nobody has had.
    for page in 0x1000..0x1400 {
        memory.write_obj(WORD, GuestAddress(page * PAGE + 8 * (page % 500))).unwrap();
    }
}

/// What must be the same in two machines that wait at the same place.
fn comparable(vcpu: &VcpuState) -> impl PartialEq + std::fmt::Debug + use<> {
    let moves = [0x10, 0xe7, 0xe8, 0x4000_0010, 0x4000_0020];
    let mut vcpu = vcpu.clone();
    vcpu.msrs.retain(|msr| !moves.contains(&msr.index));
    vcpu.local_apic.set_register(0x390, 0);
    (vcpu.msrs, vcpu.system, vcpu.xsave, vcpu.xcrs, vcpu.debug, vcpu.local_apic, vcpu.cpuid)
}

/// The same, of devices: the agent's connection is asked for again and again, from another port each time.
fn devices(template: &Template) -> DevicesState {
    let mut devices = template.state().devices.clone();
    devices.vsock.next_host_port = 0;
    assert!(devices.vsock.connections.len() <= 1, "{:?}", devices.vsock);
    devices.vsock.connections.clear();
    devices
}

#[test]
fn nothing_of_the_last_guest_is_left() {
    let Some(bench) = Bench::new() else { return };
    let fresh = bench.restore();
    // In the script.
    let of_template = traces(&bytes(&fresh));
    let mut machine = bench.restore();
    for round in 0..2 {
        let mut old = machine.take_channel().unwrap();
        let_a_tenant_in(&machine);
        let dirty = bytes(&machine);
        assert!(traces(&dirty) > 1100, "the tenant leaves traces");
        assert!(machine.exit_counts().ports > 3);
        let dirty = machine.capture().unwrap();
        assert_ne!(devices(&dirty), devices(&bench.template));

        bench.reset(&mut machine);
        assert_eq!(machine.console_tail(), "", "round {round}");
        assert!(machine.report().is_none());
        assert!(machine.exit_counts().ports < 3, "{:?}", machine.exit_counts());
        // All pages, against a machine that was just made. What the devices note in the queues comes a moment later.
        let expected = bytes(&fresh);
        wait_for(PATIENCE, "the same memory", || bytes(&machine) == expected);
        let clean = bytes(&machine);
        assert_eq!(traces(&clean), of_template);
        let (after, new) = (machine.capture().unwrap(), fresh.capture().unwrap());
        assert_eq!(devices(&after), devices(&new));
        assert_eq!(after.state().interrupt_chip, new.state().interrupt_chip);
        for (after, new) in after.state().vcpus.iter().zip(&new.state().vcpus) {
            assert_eq!(comparable(after), comparable(new));
        }
        // The last tenant's stream has ended; the next one's has not.
        old.set_read_timeout(Some(PATIENCE)).unwrap();
        let end = old.read(&mut [0; 16]);
        assert!(matches!(&end, Ok(0)) || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
        let mut own = machine.take_channel().expect("a new one");
        own.set_nonblocking(true).unwrap();
        assert_eq!(own.read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
        bench.reset(&mut machine);
    }
    // A capture of it is one of the template's.
    let kept = machine.capture().unwrap();
    let clone = Machine::resume_from(&bench.hypervisor, &kept).unwrap();
    assert_eq!(bytes(&clone).len(), bytes(&fresh).len());
    let_a_tenant_in(&clone);
}

#[test]
fn a_machine_is_reset_at_any_moment_of_its_guest_s_work() {
    let Some(bench) = Bench::new() else { return };
    let mut machine = bench.restore();
    for round in 0..or_in_rig(60, 10u64) {
        machine.ram().unwrap().memory().write_obj(1u16, GuestAddress(GO)).unwrap();
        std::thread::sleep(Duration::from_micros(round * round * 3));
        bench.reset(&mut machine);
        assert_eq!(machine.console_tail(), "", "round {round}");
    }
    let_a_tenant_in(&machine);
    assert!(!machine.console_tail().contains("ready"));
}

#[test]
fn resets_leave_nothing_behind() {
    alone("reset::resets_leave_nothing_behind", || {
        let Some(bench) = Bench::new() else { return };
        let mut machine = bench.restore();
        let round = |machine: &mut Machine| {
            let_a_tenant_in(machine);
            bench.reset(machine);
        };
        (0..10).for_each(|_| round(&mut machine));
        // The devices' thread drops what it has served before when it gets to it.
        let settled = || {
            std::thread::sleep(Duration::from_millis(300));
            Holdings::now()
        };
        let before = settled();
        (0..or_in_rig(60, 10)).for_each(|_| round(&mut machine));
        settled().check_against(&before);
    });
}

#[test]
fn what_is_no_restored_machine_that_runs_is_not_reset() {
    let Some(host) = Host::new() else { return };
    let mut booted = host.start(&script());
    assert!(matches!(booted.reset(), Err(BackendError::Unsupported { .. })));
    wait_for(PATIENCE, "the guest", || booted.console_tail().contains("ready"));
    let template = booted.capture().unwrap();
    let mut machine = template.restore().unwrap();
    machine.reset().unwrap();
    machine.kill().unwrap();
    assert!(matches!(machine.reset(), Err(BackendError::Killed)));
    drop(host.monitor.check());

    // One of another template ends instead of becoming a mixture of both.
    let (Some(one), Some(other)) = (Bench::new(), Bench::new()) else { return };
    let mut machine = one.restore();
    assert!(machine.reset_to(&other.template).is_err());
    wait_for(PATIENCE, "its end", || machine.report().is_some());
}
