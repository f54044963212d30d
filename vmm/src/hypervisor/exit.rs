//! Why a virtual CPU stopped executing the guest.

/// What a virtual CPU came back with from [`Vcpu::run`](super::Vcpu::run).
///
/// Where there is data, it lies in memory shared with the hypervisor, and the next run continues the guest's
/// instruction with what a read has been answered.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit<'a> {
    /// The guest reads device memory: `data` (1 to 8 bytes, little-endian) is to be filled.
    MmioRead {
        /// Guest-physical address.
        addr: u64,
        /// To be filled; holds the bytes of an earlier access until then.
        data: &'a mut [u8],
    },
    /// The guest writes device memory, 1 to 8 bytes.
    MmioWrite {
        /// Guest-physical address.
        addr: u64,
        /// What it writes.
        data: &'a [u8],
    },
    /// The guest reads an I/O port, once or (`rep ins`) several times: `data` is `size` bytes for each access. x86 only.
    PortIn {
        /// The port.
        port: u16,
        /// Bytes of one access: 1, 2 or 4.
        size: u8,
        /// To be filled; a whole number of accesses, at least one.
        data: &'a mut [u8],
    },
    /// The guest writes an I/O port, once or (`rep outs`) several times. x86 only.
    PortOut {
        /// The port.
        port: u16,
        /// Bytes of one access: 1, 2 or 4.
        size: u8,
        /// What it writes; a whole number of accesses, at least one.
        data: &'a [u8],
    },
    /// The guest waits for an interrupt, and nobody but the caller could send one: there is no interrupt chip in the
    /// hypervisor. With one, a halted virtual CPU stays inside [`run`](super::Vcpu::run).
    Halt,
    /// The processor gave up: a fault in the handler of a double fault (x86), or what the hypervisor says in its place.
    TripleFault,
    /// The guest asked firmware for something (on arm64 by PSCI), or crashed in a way that the hypervisor knows.
    SystemEvent {
        /// What it was.
        kind: SystemEvent,
    },
    /// A [kick](super::Kick) or a signal: nothing happened in the guest.
    Kicked,
    /// Nothing happened, and the next run may go on at once.
    Retry,
    /// The hypervisor met something that it cannot carry out, for one an instruction that it cannot emulate.
    InternalError {
        /// Number of the hypervisor (`KVM_INTERNAL_ERROR_*`; 1 is a failed emulation).
        suberror: u32,
        /// What it adds: numbers of its own.
        data: Vec<u64>,
    },
    /// The processor refused the state that the guest was to be entered with.
    FailedEntry {
        /// The hardware's reason (for Intel, the VM-exit reason or VM-instruction error).
        reason: u64,
        /// The host's processor.
        cpu: u32,
    },
    /// An exit that this monitor asks nobody for.
    Other {
        /// The hypervisor's number for it (`KVM_EXIT_*`).
        reason: u32,
    },
}

/// What a guest asked of its firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SystemEvent {
    /// Power off.
    Shutdown,
    /// Reset.
    Reset,
    /// The guest crashed.
    Crash,
    /// Anything else, with the hypervisor's number (`KVM_SYSTEM_EVENT_*`).
    Other(u32),
}
