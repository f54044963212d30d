//! The guests: assembled with this test, copied out of its read-only data.
//!
//! Each is position independent and starts in 64-bit mode at privilege level 0, at [`CODE`](super::machine::CODE), with a
//! stack and all memory below 4 GiB mapped to itself. A handler of interrupts, where there is one, stands 256 bytes
//! after the start. Ports and addresses are those of [`machine`](super::machine).

#![allow(unsafe_code)]
#![allow(dead_code)] // Some are for the benchmark, which shares this file, and most only for the tests.

use std::arch::global_asm;

/// Defines a guest: a function of that name that gives its bytes.
macro_rules! guests {
    ($($(#[$doc:meta])* $name:ident: $($line:literal)*;)*) => {$(
        global_asm!(
            ".pushsection .rodata.hayfork_guests, \"a\"",
            ".balign 256",
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

    /// Writes and reads a device in all widths, and ports in all widths.
    touches_everything:
        "mov edi, 0x10000000"
        "mov rax, 0x8877665544332211"
        "mov [rdi], al"
        "mov [rdi + 2], ax"
        "mov [rdi + 4], eax"
        "mov [rdi + 8], rax"
        "mov bl, [rdi]"
        "mov bx, [rdi]"
        "mov ebx, [rdi]"
        "mov rbx, [rdi]"
        "mov dx, 0x300"
        "out dx, al"
        "out dx, ax"
        "out dx, eax"
        "in al, dx"
        "in ax, dx"
        "in eax, dx"
        "out 0xf4, al";

    /// Writes ten bytes to a port by one string instruction, then reads six words from another into memory.
    moves_strings:
        "cld"
        "lea rsi, [rip + 3f]"
        "mov ecx, 10"
        "mov dx, 0x3f8"
        "rep outsb"
        "mov edi, 0x30000"
        "mov ecx, 6"
        "mov dx, 0x300"
        "rep insw"
        "out 0xf4, al"
        "3: .ascii \"0123456789\"";

    /// Reads 16 bytes of a device into a vector register at once, and writes them to memory.
    reads_a_vector:
        "mov edi, 0x10000000"
        "movups xmm0, [rdi]"
        "mov esi, 0x30000"
        "movups [rsi], xmm0"
        "out 0xf4, al";

    /// Jumps to a device, where there are no instructions.
    jumps_to_a_device:
        "mov eax, 0x10000000"
        "jmp rax";

    /// Writes to the first byte of the second MiB, reads it, and ends.
    uses_the_second_mib:
        "mov edi, 0x100000"
        "mov byte ptr [rdi], 0x5a"
        "mov al, [rdi]"
        "out 0xf4, al";

    /// Waits for interrupts, for ever. The handler counts at 0x30000 and says so at port 0x12.
    serves_interrupts:
        "sti"
        "2: hlt"
        "jmp 2b"
        ".balign 256"
        "push rax"
        "push rdi"
        "mov edi, 0x30000"
        "inc dword ptr [rdi]"
        "mov al, [rdi]"
        "out 0x12, al"
        "mov edi, 0xfee000b0" // end of interrupt
        "mov dword ptr [rdi], 0"
        "pop rdi"
        "pop rax"
        "iretq";

    /// Waits for interrupts, for ever. The handler counts at 0x30000, turns around as often as 0x30008 says, without an exit, and says
    /// at port 0x12 that it is done.
    works_on_interrupts:
        "sti"
        "2: hlt"
        "jmp 2b"
        ".balign 256"
        "push rax"
        "push rcx"
        "push rdi"
        "mov edi, 0x30000"
        "inc dword ptr [rdi]"
        "mov ecx, [rdi + 8]"
        "2: dec ecx"
        "jnz 2b"
        "out 0x12, al"
        "mov edi, 0xfee000b0" // end of interrupt
        "mov dword ptr [rdi], 0"
        "pop rdi"
        "pop rcx"
        "pop rax"
        "iretq";

    /// Writes the value at 0x30000 to a doorbell, as often as 0x30004 says, then ends.
    rings:
        "mov esi, 0x30000"
        "mov eax, [rsi]"
        "mov ecx, [rsi + 4]"
        "mov edi, 0x10000050"
        "2: mov [rdi], eax"
        "dec ecx"
        "jnz 2b"
        "out 0xf4, al";

    /// Writes one port for ever.
    writes_a_port:
        "2: out 0x10, al"
        "jmp 2b";

    /// Reads one device register for ever.
    reads_a_device:
        "mov edi, 0x10000000"
        "2: mov eax, [rdi]"
        "jmp 2b";

    /// Writes 0x5a001 to all model-specific registers of the ranges at 0x30010 (the first and the one behind the last, 4 bytes each;
    /// zeroes end it), counts at 0x30000 those that take it, and says at port 0x12 that it is done. The handler, here of
    /// general protection faults, passes over the instruction and its count.
    writes_registers:
        "mov ebp, 0x30000"
        "mov esi, 0x30010"
        "2: mov ecx, [rsi]"
        "mov edi, [rsi + 4]"
        "test edi, edi"
        "jz 4f"
        "3: mov eax, 0x5a001"
        "xor edx, edx"
        "wrmsr"
        "inc dword ptr [rbp]"
        "inc ecx"
        "cmp ecx, edi"
        "jne 3b"
        "add esi, 8"
        "jmp 2b"
        "4: out 0x12, al"
        "5: jmp 5b"
        ".balign 256"
        "add rsp, 8"
        "add qword ptr [rsp], 5"
        "iretq";

    /// Counts like `counts_at_a_device`, with the count in a vector register, a debug register, and on the stack too; one that
    /// differs goes to port 0x11. Two virtual CPUs count at two devices: rsi is the number of this one.
    counts_everywhere:
        "shl esi, 12"
        "lea edi, [rsi + 0x10000000]"
        "mov esp, 0x20000"
        "sub esp, esi"
        "xor ebx, ebx"
        "2: inc ebx"
        "mov [rdi], ebx"
        "mov [rsp - 32], rbx" // KVM's interpreter knows no other way into a vector register
        "movups xmm5, [rsp - 32]"
        "mov dr1, rbx"
        "push rbx"
        "mov ecx, 20"
        "3: dec ecx"
        "jnz 3b"
        "pop rdx"
        "movups [rsp - 64], xmm5"
        "mov eax, [rsp - 64]"
        "cmp eax, ebx"
        "jne 4f"
        "mov rax, dr1"
        "cmp eax, ebx"
        "jne 4f"
        "mov eax, edx"
        "cmp eax, ebx"
        "je 2b"
        "4: out 0x11, eax"
        "jmp 2b";
}
