//! The whole command line, so that no change to it goes unseen.

use std::time::Duration;

use super::*;

const FDS: Inherited = Inherited {
    control: 15,
    agent: 10,
    memory: 11,
    root_image: Some(14),
    start: Start::Boot { kernel: 12, initramfs: 13 },
};
const TCG: Engine =
    Engine { accelerator: Accelerator::Tcg, translation_buffer_mib: 32, tsc_khz: Some(2_445_434) };

fn spec() -> MachineSpec {
    let mut spec = MachineSpec::new("/images/vmlinux", "/images/initramfs.cpio");
    spec.name = "demo-1".into();
    spec.root_image = Some("/images/a,b=c.erofs".into());
    spec.memory_mib = 192;
    spec.vcpus = 2;
    spec.linger = Duration::from_secs(3);
    spec
}

#[test]
fn the_whole_command_line_for_tcg() {
    let expected = [
        "-name",
        "demo-1",
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-machine",
        "microvm,acpi=off,pic=off,pit=off,rtc=on,isa-serial=on,x-option-roms=off,auto-kernel-cmdline=on,\
         usb=off,graphics=off,mem-merge=off,dump-guest-core=off,suppress-vmdesc=on,memory-backend=ram",
        "-accel",
        "tcg,tb-size=32",
        "-cpu",
        TCG_CPU,
        "-smp",
        "2",
        "-m",
        "192M",
        "-object",
        "memory-backend-file,id=ram,mem-path=/proc/self/fd/11,size=192M,share=on",
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-rtc",
        "base=utc",
        "-kernel",
        "/proc/self/fd/12",
        "-initrd",
        "/proc/self/fd/13",
        "-append",
        "console=ttyS0 panic=-1 reboot=t noreplace-smp clearcpuid=cx16 tsc_early_khz=2445434 tsc=reliable \
         lapic_timer_khz=1000000 quiet rcupdate.rcu_expedited=1 \
         hayfork.carrier=virtio-serial:org.hayfork.agent hayfork.linger=3 hayfork.root=/dev/vda",
        "-chardev",
        "socket,id=control,fd=15",
        "-mon",
        "chardev=control,mode=control",
        "-global",
        "migration.send-configuration=off",
        "-chardev",
        "stdio,id=console,signal=off",
        "-serial",
        "chardev:console",
        "-global",
        "virtio-mmio.force-legacy=false",
        "-device",
        "virtio-serial-device,max_ports=3",
        "-chardev",
        "socket,id=agent1,fd=10",
        "-device",
        "virtserialport,nr=1,chardev=agent1,name=org.hayfork.agent",
        "-chardev",
        "null,id=agent2",
        "-device",
        "virtserialport,nr=2,chardev=agent2,name=org.hayfork.agent.2",
        "-device",
        "virtio-rng-device",
        "-blockdev",
        "driver=file,node-name=root,filename=/proc/self/fd/14,read-only=on,locking=off",
        "-device",
        "virtio-blk-device,drive=root",
    ];
    assert_eq!(arguments(&spec(), TCG, FDS), expected);
}

/// The value behind the only `name` among the arguments.
fn value(arguments: &[String], name: &str) -> String {
    let places: Vec<usize> = (0..arguments.len()).filter(|&at| arguments[at] == name).collect();
    assert_eq!(places.len(), 1, "{name} in {arguments:?}");
    arguments[places[0] + 1].clone()
}

#[test]
fn kvm_gets_no_translation_and_no_clock_hints() {
    let kvm = Engine { accelerator: Accelerator::Kvm, ..TCG };
    let all = arguments(&spec(), kvm, FDS);
    assert_eq!(value(&all, "-accel"), "kvm");
    assert_eq!(value(&all, "-cpu"), "host");
    let line = value(&all, "-append");
    assert!(!line.contains("tsc") && !line.contains("lapic") && !line.contains("no_timer_check"), "{line}");
    assert!(value(&all, "-machine").contains("pic=on,pit=on"));
}

#[test]
fn an_unknown_counter_is_not_mentioned() {
    let all = arguments(&spec(), Engine { tsc_khz: None, ..TCG }, FDS);
    let line = value(&all, "-append");
    assert!(line.contains("no_timer_check") && !line.contains("tsc") && !line.contains("lapic"), "{line}");
    // Then the kernel has to measure.
    assert!(value(&all, "-machine").contains("pic=on,pit=on"));
}

/// A restored machine must have the same devices in the same order, and must not write to what it was made of.
#[test]
fn a_restored_machine_differs_where_it_must_and_nowhere_else() {
    for (port, from, to) in [
        (Port::First, ["", ""], ["", ""]),
        (
            Port::Second,
            ["socket,id=agent1,fd=10", "null,id=agent2"],
            ["null,id=agent1", "socket,id=agent2,fd=10"],
        ),
    ] {
        let saved = arguments(&spec(), TCG, Inherited { start: Start::Saved { port }, ..FDS });
        let mut expected = arguments(&spec(), TCG, FDS);
        let boot = expected.iter().position(|argument| argument == "-kernel").unwrap();
        expected.splice(boot..boot + 6, ["-incoming".to_owned(), "defer".to_owned()]);
        for argument in &mut expected {
            if let Some(at) = from.iter().position(|from| from == argument) {
                to[at].clone_into(argument);
            }
            *argument = argument.replace("share=on", "share=off");
        }
        assert_eq!(saved, expected);
    }
}

#[test]
fn the_host_is_never_where_it_was_before() {
    assert_eq!(FDS.start.port(), Port::First);
    assert_eq!([Port::First.next(), Port::Second.next()], [Port::Second, Port::First]);
}

#[test]
fn without_a_root_image_there_is_no_block_device() {
    let mut spec = spec();
    spec.root_image = None;
    let all = arguments(&spec, TCG, Inherited { root_image: None, ..FDS });
    assert!(!all.iter().any(|argument| argument.contains("blk") || argument.contains("blockdev")), "{all:?}");
    assert!(!value(&all, "-append").contains("hayfork.root"));
}

#[test]
fn the_user_s_kernel_parameters_come_last() {
    let mut spec = spec();
    spec.extra_command_line = "panic=0 x=1,2".into();
    assert!(value(&arguments(&spec, TCG, FDS), "-append").ends_with(" panic=0 x=1,2"));
}

#[test]
fn no_path_of_an_image_reaches_the_command_line() {
    let all = arguments(&spec(), TCG, FDS);
    assert!(!all.iter().any(|argument| argument.contains("/images")), "{all:?}");
}
