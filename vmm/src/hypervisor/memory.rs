//! Memory that is given to a guest.

use std::any::Any;
use std::sync::Arc;

use vm_memory::bitmap::Bitmap;
use vm_memory::{GuestMemoryRegion, GuestRegionMmap};

/// A mapping of this process that is to be guest memory, together with whatever keeps it mapped.
///
/// A virtual machine holds the owner from [`map_memory`](super::Vm::map_memory) to
/// [`unmap_memory`](super::Vm::unmap_memory), or until the machine and its last virtual CPU are gone: were the mapping
/// to go earlier, the guest would reach what this process maps at the same address next.
#[derive(Clone)]
pub struct MappedRegion {
    guest_address: u64,
    host_address: u64,
    size: u64,
    writable: bool,
    /// Held, never used.
    _owner: Arc<dyn Any + Send + Sync>,
}

impl MappedRegion {
    /// The whole of a region of vm-memory. The guest may write it if this process may.
    pub fn from_mmap<B>(region: &Arc<GuestRegionMmap<B>>) -> Self
    where
        B: Bitmap + Send + Sync + 'static,
    {
        Self {
            guest_address: region.start_addr().0,
            host_address: region.as_ptr() as u64,
            size: region.len(),
            writable: region.prot() & libc::PROT_WRITE != 0,
            _owner: Arc::clone(region) as Arc<dyn Any + Send + Sync>,
        }
    }

    /// The same memory, which the guest may only read. What it does on a write is the hypervisor's choice: KVM and
    /// Hypervisor.framework both report it as a write to device memory.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.writable = false;
        self
    }

    /// Where the guest sees it: guest-physical, in bytes.
    pub fn guest_address(&self) -> u64 {
        self.guest_address
    }

    /// Where this process has it mapped.
    pub fn host_address(&self) -> u64 {
        self.host_address
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the guest may write it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }
}

impl std::fmt::Debug for MappedRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappedRegion")
            .field("guest_address", &format_args!("{:#x}", self.guest_address))
            .field("size", &format_args!("{:#x}", self.size))
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}
