//! The calls that map guest memory.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{GuestAddress, GuestMemoryRegion, GuestRegionMmap, MmapRegion};

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// What becomes of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// All of them are replaced by [`overlay`], before anybody uses them.
    Covered,
    /// None larger than usual, so that what was written is told exactly.
    Small,
    /// They are the guest's, large ones where the host can.
    Large,
}

/// Maps zeroed private memory, one region for each part.
pub(super) fn anonymous(
    parts: &[(GuestAddress, u64)],
    pages: Pages,
) -> io::Result<Vec<Arc<GuestRegionMmap>>> {
    let mut regions = Vec::with_capacity(parts.len());
    for &(address, bytes) in parts {
        let size = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let region = MmapRegionBuilder::new(size)
            .with_mmap_prot(READ_WRITE)
            .with_mmap_flags(libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_NORESERVE)
            .build()
            .map_err(io::Error::other)?;
        match pages {
            Pages::Covered => {}
            Pages::Small => advise(&region, size, libc::MADV_NOHUGEPAGE)?,
            // A guest takes a fault for each page that it touches first, and these are most of its start. Measured on
            // kvm_pvm: a fifth off the boot, for 4 MiB more of 26. What the host has no large pages for stays in small ones.
            Pages::Large => advise(&region, size, libc::MADV_HUGEPAGE)?,
        }
        let region = GuestRegionMmap::new(region, address)
            .ok_or_else(|| io::Error::other("a region beyond the end of the address space"))?;
        regions.push(Arc::new(region));
    }
    Ok(regions)
}

/// What the kernel is told of pages that are not replaced.
fn advise(region: &MmapRegion, size: usize, pages: libc::c_int) -> io::Result<()> {
    // SAFETY: The range is that of the mapping just made, which nobody else knows yet. The advice concerns children
    // of a later fork only.
    let done = unsafe { libc::madvise(region.as_ptr().cast(), size, libc::MADV_DONTFORK) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // A kernel without large pages refuses the advice.
    // SAFETY: As above; the advice changes no content.
    unsafe { libc::madvise(region.as_ptr().cast(), size, pages) };
    Ok(())
}

/// Replaces a part of a region by a private mapping of `extent` of `image`.
///
/// The caller has checked that the extent lies in the region and starts at a page, and that nobody else uses the region yet.
pub(super) fn overlay(
    region: &GuestRegionMmap,
    at: GuestAddress,
    image: BorrowedFd<'_>,
    extent: Range<u64>,
) -> io::Result<()> {
    let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let offset = usize::try_from(at.0 - region.start_addr().0).map_err(too_large)?;
    let size = usize::try_from(extent.end - extent.start).map_err(too_large)?;
    let file_offset = libc::off_t::try_from(extent.start).map_err(too_large)?;
    assert!(offset.checked_add(size).is_some_and(|end| end as u64 <= region.len()), "checked by the caller");
    let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: The range lies inside the region's own mapping, so nothing else can be replaced; nobody uses it yet. The
    // memory file is sealed against writing, shrinking and growing, so the pages stay valid and as they are.
    unsafe {
        let target = region.as_ptr().add(offset).cast();
        let mapped = libc::mmap(target, size, READ_WRITE, flags, image.as_raw_fd(), file_offset);
        if mapped == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // The kernel may have taken away what was there. A hole in which some other mapping of this process came to
            // lie would be open to the guest, so it is closed or the process ends.
            let flags = flags | libc::MAP_ANONYMOUS;
            if libc::mmap(target, size, READ_WRITE, flags, -1, 0) == libc::MAP_FAILED {
                std::process::abort();
            }
            return Err(error);
        }
        if libc::madvise(target, size, libc::MADV_DONTFORK) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Drops this process's own pages of a region: it has the content of its mappings again, which are private ones of images, and
/// zeroes where there is none.
pub(super) fn drop_private(region: &GuestRegionMmap) -> io::Result<()> {
    let size = usize::try_from(region.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: The range is that of the region's own mapping, which stays. Content changes only as it might by a guest's writes at
    // any time: there are no Rust references into guest memory.
    let done = unsafe { libc::madvise(region.as_ptr().cast(), size, libc::MADV_DONTNEED) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes pages of a region there and the process's own, as a write to each of them would, in one call. A kernel that cannot
/// (before 5.14) leaves it to the guest.
///
/// The caller has checked that the range lies in the region.
pub(super) fn populate(region: &GuestRegionMmap, range: Range<u64>) -> io::Result<()> {
    let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let offset = usize::try_from(range.start).map_err(too_large)?;
    let size = usize::try_from(range.end - range.start).map_err(too_large)?;
    assert!(range.end <= region.len(), "checked by the caller");
    // SAFETY: The range lies inside the region's own mapping; the advice changes no content.
    let done = unsafe { libc::madvise(region.as_ptr().add(offset).cast(), size, libc::MADV_POPULATE_WRITE) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
