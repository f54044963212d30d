//! The guests: assembled with this test, copied out of its read-only data.
//!
//! Each is position independent and starts in 64-bit mode at privilege level 0, at [`CODE`](super::machine::CODE), with a
//! stack and all memory below 4 GiB mapped to itself. Ports and addresses are those of [`machine`](super::machine).

#![allow(unsafe_code)]

use std::arch::global_asm;

/// Defines a guest: a function of that name that gives its bytes.
macro_rules! guests {
    ($($(#[$doc:meta])* $name:ident: $($line:literal)*;)*) => {$(
        global_asm!(
            ".pushsection .rodata.hayfork_guests, \"a\"",
            concat!("hayfork_guest_", stringify!($name), ":"),
            $($line,)*
            concat!("hayfork_guest_", stringify!($name), "_end:"),
            ".popsection",
        );

        $(#[$doc])*
        pub(crate) fn $name() -> &'static [u8] {
            let (start, end): (*const u8, *const u8);
            // SAFETY: computes two addresses and touches neither memory nor flags.
            unsafe {
                std::arch::asm!(
                    concat!("lea {start}, [rip + hayfork_guest_", stringify!($name), "]"),
                    concat!("lea {end}, [rip + hayfork_guest_", stringify!($name), "_end]"),
                    start = out(reg) start,
                    end = out(reg) end,
                    options(nomem, nostack, preserves_flags),
                );
            }
            // SAFETY: both labels are in this file's read-only data, the second after the first, with only the guest's
            // bytes in between.
            unsafe { std::slice::from_raw_parts(start, usize::try_from(end.offset_from(start)).unwrap()) }
        }
    )*};
}

guests! {
    /// Writes the sum of 2 and 3 to port 0x10.
    adds:
        "mov eax, 2"
        "add eax, 3"
        "out 0x10, al";

    /// Writes a word that it finds in memory, plus one, behind it.
    increments:
        "mov rbx, 0x30000"
        "mov rax, [rbx]"
        "inc rax"
        "mov [rbx + 8], rax"
        "out 0x10, al";

    /// Executes for ever and touches nothing.
    spins:
        "2: jmp 2b";

    /// Writes 0xfe to the keyboard controller: a reset. Then goes on, if nobody stops it.
    resets:
        "mov al, 0xfe"
        "out 0x64, al"
        "2: jmp 2b";

    /// Counts in ebx; writes each count to a device, reads it back, and does that for ever. A read that does not give the
    /// count goes to port 0x11.
    counts_at_a_device:
        "mov edi, 0x10000000"
        "xor ebx, ebx"
        "2: inc ebx"
        "mov [rdi], ebx"
        "mov eax, [rdi]"
        "cmp eax, ebx"
        "je 2b"
        "out 0x11, eax"
        "jmp 2b";

    /// Waits for an interrupt with interrupts off.
    halts:
        "cli"
        "2: hlt"
        "jmp 2b";

    /// Executes an undefined instruction.
    faults:
        "ud2";
}
