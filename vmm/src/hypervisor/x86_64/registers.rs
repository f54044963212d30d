//! Register files.

use serde::{Deserialize, Serialize};

/// General registers (SDM volume 1, 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // They are named as everywhere.
pub struct Registers {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
}

/// A segment register with its hidden part (SDM volume 3, 3.4.3 and 3.4.5). Fields of one bit are 0 or 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Linear address of its first byte.
    pub base: u64,
    /// Offset of its last byte; in bytes, whatever `g` says.
    pub limit: u32,
    /// The visible part.
    pub selector: u16,
    /// Type field: 11 is code (readable, accessed), 3 data (writable, accessed), 11 with `s` = 0 a busy 64-bit TSS.
    pub kind: u8,
    /// P: present.
    pub present: u8,
    /// DPL: privilege level.
    pub dpl: u8,
    /// D/B: 32-bit.
    pub db: u8,
    /// S: code or data, not a system segment.
    pub s: u8,
    /// L: 64-bit code.
    pub l: u8,
    /// G: granularity of the limit in a descriptor.
    pub g: u8,
    /// AVL: free for software.
    pub avl: u8,
    /// Loaded with a null selector.
    pub unusable: u8,
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorTable {
    /// Linear address.
    pub base: u64,
    /// Offset of its last byte.
    pub limit: u16,
}

/// Segments, tables and control registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // They are named as everywhere.
pub struct SystemRegisters {
    pub cs: Segment,
    pub ds: Segment,
    pub es: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub ss: Segment,
    pub tr: Segment,
    pub ldt: Segment,
    pub gdt: DescriptorTable,
    pub idt: DescriptorTable,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub cr8: u64,
    pub efer: u64,
    /// IA32_APIC_BASE.
    pub apic_base: u64,
    /// An interrupt of the PIC that was acknowledged and is not delivered yet: at most one bit of 256, that of its vector.
    pub interrupt_bitmap: [u64; 4],
}

/// DR0 to DR3, DR6, DR7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // They are named as everywhere.
pub struct DebugRegisters {
    pub db: [u64; 4],
    pub dr6: u64,
    pub dr7: u64,
}

/// One XCR; number 0 is all that processors have today.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendedControlRegister {
    /// Number.
    pub number: u32,
    /// Value.
    pub value: u64,
}
