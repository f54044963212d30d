//! The program of tiny guests: it does what a script says, record by record.
//!
//! A record is four words of 8 bytes: what to do, and three arguments. Assembled with the test, copied out of its read-only
//! data; position independent. Uses no vector registers, which KVM's interpreter hardly knows.

#![allow(unsafe_code)]

use std::arch::global_asm;

global_asm!(
    ".pushsection .rodata.hayfork_tiny, \"a\"",
    ".balign 16",
    "hayfork_tiny_start:",
    "mov esi, 0x120000", // super::SCRIPT
    "mov r8, 0x9e3779b97f4a7c15",
    // The next record. rdi, rbx, rcx: its arguments. rsi: the record behind it.
    "2:",
    "mov eax, [rsi]",
    "mov rdi, [rsi + 8]",
    "mov rbx, [rsi + 16]",
    "mov rcx, [rsi + 24]",
    "add rsi, 32",
    "lea rdx, [rip + 3f]",
    "movsxd rax, dword ptr [rdx + rax * 4]",
    "add rax, rdx",
    "jmp rax",
    ".balign 4",
    "3:",
    ".long 30f - 3b, 31f - 3b, 32f - 3b, 33f - 3b, 34f - 3b, 35f - 3b, 36f - 3b, 37f - 3b, 38f - 3b, 39f - 3b",
    ".long 40f - 3b, 41f - 3b, 42f - 3b, 43f - 3b, 44f - 3b, 45f - 3b, 46f - 3b, 47f - 3b, 48f - 3b",
    // 0: reset.
    "30: mov al, 0xfe",
    "out 0x64, al",
    "4: jmp 4b",
    // 1 to 4: write rbx to rdi, rcx times, 1, 2, 4 and 8 bytes.
    "31: mov [rdi], bl",
    "dec rcx",
    "jnz 31b",
    "jmp 2b",
    "32: mov [rdi], bx",
    "dec rcx",
    "jnz 32b",
    "jmp 2b",
    "33: mov [rdi], ebx",
    "dec rcx",
    "jnz 33b",
    "jmp 2b",
    "34: mov [rdi], rbx",
    "dec rcx",
    "jnz 34b",
    "jmp 2b",
    // 5 to 8: read rdi, rcx times, 1, 2, 4 and 8 bytes.
    "35: mov al, [rdi]",
    "dec rcx",
    "jnz 35b",
    "jmp 2b",
    "36: mov ax, [rdi]",
    "dec rcx",
    "jnz 36b",
    "jmp 2b",
    "37: mov eax, [rdi]",
    "dec rcx",
    "jnz 37b",
    "jmp 2b",
    "38: mov rax, [rdi]",
    "dec rcx",
    "jnz 38b",
    "jmp 2b",
    // 9: write bl to port di, rcx times.
    "39: mov edx, edi",
    "mov eax, ebx",
    "5: out dx, al",
    "dec rcx",
    "jnz 5b",
    "jmp 2b",
    // 10: read port di, rcx times, 4 bytes.
    "40: mov edx, edi",
    "5: in eax, dx",
    "dec rcx",
    "jnz 5b",
    "jmp 2b",
    // 11: write the rcx bytes at rbx to port di by one instruction.
    "41: mov edx, edi",
    "mov r9, rsi",
    "mov rsi, rbx",
    "cld",
    "rep outsb",
    "mov rsi, r9",
    "jmp 2b",
    // 12: go on at record rdi: rbx times, of which rcx are left, then once more from the beginning; for ever if that is 0.
    "42: test rbx, rbx",
    "jz 5f",
    "dec rcx",
    "mov [rsi - 8], rcx",
    "jnz 5f",
    "mov [rsi - 8], rbx",
    "jmp 2b",
    "5: mov rsi, rdi",
    "jmp 2b",
    // 13: accesses of random widths at random places: rdi plus a number masked by rbx; rcx times.
    "43: mov rax, r8",
    "shl rax, 13",
    "xor r8, rax",
    "mov rax, r8",
    "shr rax, 7",
    "xor r8, rax",
    "mov rax, r8",
    "shl rax, 17",
    "xor r8, rax",
    "mov rdx, r8",
    "and rdx, rbx",
    "add rdx, rdi",
    "mov rax, r8",
    "rol rax, 8",
    "mov r9, r8",
    "shr r9, 61",
    "jz 5f",
    "dec r9",
    "jz 6f",
    "dec r9",
    "jz 7f",
    "dec r9",
    "jz 8f",
    "dec r9",
    "jz 50f",
    "dec r9",
    "jz 60f",
    "dec r9",
    "jz 70f",
    "mov [rdx], rax",
    "jmp 9f",
    "5: mov al, [rdx]",
    "jmp 9f",
    "6: mov ax, [rdx]",
    "jmp 9f",
    "7: mov eax, [rdx]",
    "jmp 9f",
    "8: mov rax, [rdx]",
    "jmp 9f",
    "50: mov [rdx], al",
    "jmp 9f",
    "60: mov [rdx], ax",
    "jmp 9f",
    "70: mov [rdx], eax",
    "9: dec rcx",
    "jnz 43b",
    "jmp 2b",
    // 14: count to rcx.
    "44: dec rcx",
    "jnz 44b",
    "jmp 2b",
    // 15: an undefined instruction, and nobody to handle it.
    "45: ud2",
    // 16: halt for ever, with interrupts off.
    "46: cli",
    "5: hlt",
    "jmp 5b",
    // 17: add rbx to the 2 bytes at rdi.
    "47: add [rdi], bx",
    "jmp 2b",
    // 18: wait until the 2 bytes at rdi are bx.
    "48: cmp [rdi], bx",
    "jne 48b",
    "jmp 2b",
    "hayfork_tiny_end:",
    ".popsection",
);

/// The program's bytes.
pub(crate) fn program() -> &'static [u8] {
    let (start, end): (*const u8, *const u8);
    // SAFETY: computes two addresses and touches neither memory nor flags.
    unsafe {
        std::arch::asm!(
            "lea {start}, [rip + hayfork_tiny_start]",
            "lea {end}, [rip + hayfork_tiny_end]",
            start = out(reg) start,
            end = out(reg) end,
            options(nomem, nostack, preserves_flags),
        );
    }
    // SAFETY: both labels are in this file's read-only data, the second after the first, with only the program's bytes in
    // between.
    unsafe { std::slice::from_raw_parts(start, usize::try_from(end.offset_from(start)).unwrap()) }
}
