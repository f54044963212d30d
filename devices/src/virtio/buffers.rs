//! The memory of a descriptor chain, as lists of slices that bytes can be moved to and from in one call.

use std::collections::VecDeque;

use virtio_queue::DescriptorChain;
use vm_memory::bitmap::{BitmapSlice, WithBitmapSlice};
use vm_memory::{GuestMemory, Permissions, VolatileSlice};

/// The slices of guest memory of one kind of bitmap.
pub(crate) type SliceOf<'m, M> = <<M as GuestMemory>::Bitmap as WithBitmapSlice<'m>>::S;

/// Guest memory in pieces, taken off piece by piece from the front.
#[derive(Debug)]
pub(crate) struct Buffers<'m, B> {
    /// None of them is empty.
    slices: VecDeque<VolatileSlice<'m, B>>,
    len: usize,
}

impl<'m, B: BitmapSlice> Buffers<'m, B> {
    fn new() -> Self {
        Self { slices: VecDeque::new(), len: 0 }
    }

    fn push(&mut self, slice: VolatileSlice<'m, B>) {
        if !slice.is_empty() {
            self.len += slice.len();
            self.slices.push_back(slice);
        }
    }

    /// Bytes that are left.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The pieces that are left.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &VolatileSlice<'m, B>> {
        self.slices.iter()
    }

    /// Takes `count` bytes off, or all.
    pub(crate) fn skip(&mut self, mut count: usize) {
        count = count.min(self.len);
        self.len -= count;
        while count > 0 {
            let Some(slice) = self.slices.pop_front() else { break };
            if count < slice.len() {
                // Cannot fail: the offset is inside.
                if let Ok(rest) = slice.offset(count) {
                    self.slices.push_front(rest);
                }
                break;
            }
            count -= slice.len();
        }
    }

    /// Takes the last byte off, as a slice of its own.
    pub(crate) fn take_last(&mut self) -> Option<VolatileSlice<'m, B>> {
        let slice = self.slices.pop_back()?;
        let (rest, last) = slice.split_at(slice.len() - 1).ok()?;
        if !rest.is_empty() {
            self.slices.push_back(rest);
        }
        self.len -= 1;
        Some(last)
    }

    /// Moves bytes from the front into `bytes`; gives how many there were.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        for slice in &self.slices {
            if done == bytes.len() {
                break;
            }
            done += slice.copy_to(&mut bytes[done..]);
        }
        self.skip(done);
        done
    }

    /// Moves bytes to the front; gives for how many there was room.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        for slice in &self.slices {
            let part = slice.len().min(bytes.len() - done);
            if part == 0 {
                break;
            }
            slice.copy_from(&bytes[done..done + part]);
            done += part;
        }
        self.skip(done);
        done
    }
}

/// What a chain holds for the device to read, and for it to write.
#[derive(Debug)]
pub(crate) struct ChainBuffers<'m, B> {
    pub(crate) readable: Buffers<'m, B>,
    pub(crate) writable: Buffers<'m, B>,
}

/// Looks a chain up in guest memory. `None` if the chain leads outside memory, has more than
/// `descriptors_max` descriptors, bites its tail, or names a descriptor that is none.
pub(crate) fn gather<'m, M: GuestMemory>(
    chain: DescriptorChain<&'m M>,
    mem: &'m M,
    descriptors_max: usize,
) -> Option<ChainBuffers<'m, SliceOf<'m, M>>> {
    let mut buffers = ChainBuffers { readable: Buffers::new(), writable: Buffers::new() };
    let mut count = 0;
    let mut more = true;
    for descriptor in chain {
        count += 1;
        if count > descriptors_max {
            return None;
        }
        let (side, access) = if descriptor.is_write_only() {
            (&mut buffers.writable, Permissions::Write)
        } else {
            (&mut buffers.readable, Permissions::Read)
        };
        let len = usize::try_from(descriptor.len()).ok()?;
        for slice in mem.get_slices(descriptor.addr(), len, access).ok()? {
            side.push(slice.ok()?);
        }
        more = descriptor.has_next();
    }
    // The chain ends early where it is broken.
    (!more).then_some(buffers)
}
