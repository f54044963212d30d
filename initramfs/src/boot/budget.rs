//! How the guest's memory, processes and inodes are divided between user code and the rest.

use crate::error::{During, OsError, Result};

const MIB: u64 = 1024 * 1024;

/// Limits derived from the size of the machine. All sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Memory that the kernel manages.
    pub total: u64,
    /// `memory.max` of all user code together.
    pub user: u64,
    /// Size of the file system that holds home and temporary folders. It counts towards `user` too.
    pub scratch: u64,
    /// Inodes of that file system.
    pub inodes: u64,
    /// Processes and threads of all user code together.
    pub processes: u64,
}

impl Budget {
    /// Divides a machine of `total` bytes.
    ///
    /// The reserve holds the agent, the kernel memory that is charged to no one (slabs of devices and of
    /// the network, page tables of the kernel) and what uploads need on their way. A tmpfs inode takes
    /// about 1 KiB of kernel memory, so one inode for each 8 KiB of memory bounds inodes to an eighth.
    pub fn for_machine(total: u64) -> Self {
        let reserve = (total / 10).clamp(20 * MIB, 128 * MIB);
        let user = total.saturating_sub(reserve).max(total / 2);
        Self {
            total,
            user,
            scratch: user / 100 * 65,
            inodes: (total / (8 * 1024)).clamp(4096, 1024 * 1024),
            processes: (total / (512 * 1024)).clamp(256, 4096),
        }
    }

    /// Divides the machine that this runs on.
    ///
    /// # Errors
    /// `/proc/meminfo` cannot be read or has no `MemTotal`.
    pub fn of_this_machine() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/meminfo").during("read /proc/meminfo")?;
        mem_total(&text)
            .map(Self::for_machine)
            .ok_or_else(|| OsError::new("find MemTotal in /proc/meminfo", rustix::io::Errno::INVAL))
    }
}

/// `MemTotal` of the text of `/proc/meminfo`, in bytes.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_total() {
        assert_eq!(mem_total("MemTotal:         233216 kB\nMemFree: 1 kB\n"), Some(233_216 * 1024));
        assert_eq!(mem_total("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn parts_fit_into_the_whole_at_every_size() {
        for mib in [16, 32, 64, 128, 256, 512, 1024, 8192, 65_536] {
            let budget = Budget::for_machine(mib * MIB);
            assert!(budget.user < budget.total, "{mib} MiB");
            assert!(budget.scratch < budget.user, "{mib} MiB");
            assert!(budget.inodes * 1024 < budget.total, "{mib} MiB");
        }
    }

    #[test]
    fn a_file_of_100_mb_fits_into_a_machine_of_256() {
        // What a 256 MiB guest reports as MemTotal.
        assert!(Budget::for_machine(230 * MIB).scratch > 105 * MIB);
    }
}
