//! The kernel's parameters that follow from the machine.
//!
//! | word | why |
//! |---|---|
//! | `console=hvc0` | the virtio console takes whole lines |
//! | `earlycon=uart8250,io,0x3f8` | until it is there, the serial port takes single characters. Behind the verbosity (which comes with the caller's words): the kernel prints what it has so far when it meets this word, by 3 exits a character |
//! | `8250.nr_uarts=0` | nothing else is to be done with the serial port, and looking at it takes 50 exits |
//! | `panic=-1 reboot=k` | a panic resets the machine at once, and a reset is asked for through the keyboard controller's port, which ends the machine (there is no ACPI to ask, and a triple fault would look like a crash) |
//! | `noreplace-smp` | see the guest kernel's configuration |
//! | `clocksource=kvm-clock` | where the host cannot offset the time stamp counter, a guest that reads it would see it jump over a snapshot |
//! | `nokaslr no_timer_check` | kvm_pvm: the kernel stays where it was linked, and the timer's check counts interrupts that are late there |
//! | `clearcpuid=…` | kvm_pvm: see [`super::native_cpuid`] |
//! | `virtio_mmio.device=4K@ADDRESS:LINE` | one for each device, in order: there is no bus to look on |

use std::fmt::Write as _;

use crate::memory::layout;

const EARLY_CONSOLE: &str = " earlycon=uart8250,io,0x3f8";

/// What the words depend on, apart from the machine itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Platform {
    /// The host cannot offset the guest's time stamp counter.
    pub fixed_tsc: bool,
    /// kvm_pvm, with the kernel that is made for it.
    pub pvm: bool,
    /// Features of the processor that the kernel must not use, by Linux's names.
    pub refused_features: Vec<&'static str>,
}

/// The whole line: ours, then the devices, then `spec`, which so has the last word but for the early console.
pub fn build(platform: &Platform, devices: usize, spec: &str) -> String {
    let mut line = String::from("console=hvc0 8250.nr_uarts=0 panic=-1 reboot=k noreplace-smp");
    if platform.fixed_tsc {
        line.push_str(" clocksource=kvm-clock");
    }
    if platform.pvm {
        line.push_str(" nokaslr no_timer_check");
    }
    if !platform.refused_features.is_empty() {
        line.push_str(" clearcpuid=");
        line.push_str(&platform.refused_features.join(","));
    }
    for index in 0..devices {
        let (address, number) = (layout::device_address(index).0, layout::device_line(index));
        // Writing to a String cannot fail.
        let _ = write!(line, " virtio_mmio.device=4K@{address:#x}:{number}");
    }
    if !spec.is_empty() {
        line.push(' ');
        line.push_str(spec);
    }
    line.push_str(EARLY_CONSOLE);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_line() {
        assert_eq!(
            build(&Platform::default(), 2, "quiet hayfork.carrier=vsock:1024"),
            "console=hvc0 8250.nr_uarts=0 panic=-1 reboot=k noreplace-smp virtio_mmio.device=4K@0xc0000000:9 \
             virtio_mmio.device=4K@0xc0001000:10 quiet hayfork.carrier=vsock:1024 earlycon=uart8250,io,0x3f8"
        );
        let pvm =
            build(&Platform { fixed_tsc: true, pvm: true, refused_features: vec!["pcid", "smep"] }, 0, "");
        assert!(
            pvm.contains(" noreplace-smp clocksource=kvm-clock nokaslr no_timer_check clearcpuid=pcid,smep "),
            "{pvm}"
        );
    }

    #[test]
    fn it_fits_with_every_device_and_the_longest_addition() {
        let spec = "x".repeat(crate::backend::MAX_COMMAND_LINE);
        let refused_features = super::super::native_cpuid::refused(&[], |_, _| [u32::MAX; 4]).collect();
        let line = build(&Platform { fixed_tsc: true, pvm: true, refused_features }, 6, &spec);
        assert!(line.len() < layout::COMMAND_LINE_SIZE, "{}", line.len());
    }
}
