//! Everything between "there is memory" and the kernel's first instruction, on x86-64.
//!
//! There is no firmware. An uncompressed kernel (ELF, `vmlinux`) is entered by Linux's 64-bit boot protocol
//! (Documentation/arch/x86/boot.rst, "64-bit Boot Protocol"): long mode, flat segments, the first GiB mapped to itself,
//! RSI pointing at `struct boot_params`. That says where RAM, command line and initramfs are. Processors and interrupt lines
//! are described by an MP table, since there is no ACPI.
//!
//! | part | what it makes |
//! |---|---|
//! | [`kernel`] | a [`SealedImage`](crate::memory::SealedImage) of the kernel's segments at their guest addresses |
//! | [`params`] | memory map, command line, initramfs: `boot_params` |
//! | [`mptable`] | processors, I/O APIC, interrupt lines |
//! | [`entry`] | page tables, descriptor table, first registers |
//! | [`cpuid`] | what the processor tells about itself |
//! | [`native_cpuid`] | on kvm_pvm: what the processor tells and the kernel must not use |
//! | [`command_line`] | the kernel's parameters |

pub mod command_line;
pub mod cpuid;
pub mod entry;
pub mod kernel;
pub mod mptable;
pub mod native_cpuid;
pub mod params;
