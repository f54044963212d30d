//! The RAM of one guest.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use vm_memory::{
    Address, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};

use super::image::SealedImage;
use super::resident::{Resident, resident};
use super::saved::MemoryImage;
use super::unsafe_map::Pages;
use super::unsafe_observed::Observer;
use super::{PAGE, layout, unsafe_map};

/// What can go wrong with guest memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The host has no memory or no address space for it.
    #[error("{bytes} bytes of guest memory could not be mapped")]
    Map {
        /// Bytes asked for.
        bytes: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// An image does not fit where it should go.
    #[error("{bytes} bytes at {address:#x} are outside of the guest's memory")]
    Outside {
        /// Guest address.
        address: u64,
        /// Bytes.
        bytes: u64,
    },
    /// An image at an address that is no multiple of a page.
    #[error("guest address {0:#x} is no multiple of the page size")]
    Unaligned(u64),
}

/// The RAM of one guest. Clones of [`GuestRam::memory`] keep the mappings alive.
#[derive(Debug)]
pub struct GuestRam {
    memory: GuestMemoryMmap,
    regions: Vec<Arc<GuestRegionMmap>>,
    /// Guest addresses that an image lies at.
    overlaid: Vec<Range<u64>>,
    /// What all of it was made of.
    base: Option<Arc<MemoryImage>>,
    /// Sees to it that what is touched can be told.
    observer: Option<Observer>,
}

impl GuestRam {
    /// Reserves `bytes` (a multiple of a page) of zeroed RAM. The host allocates pages as they are touched. A child made by
    /// fork does not get them.
    ///
    /// # Errors
    /// [`MemoryError::Map`].
    pub fn new(bytes: u64) -> Result<Self, MemoryError> {
        Self::anonymous(bytes, Pages::Large)
    }

    /// The same in small pages, for content that becomes an [image](Self::into_image).
    ///
    /// # Errors
    /// [`MemoryError::Map`].
    pub(crate) fn stage(bytes: u64) -> Result<Self, MemoryError> {
        Self::anonymous(bytes, Pages::Small)
    }

    /// RAM with the content of a saved guest's. Pages are shared with all others of the same image until they are written to.
    ///
    /// # Errors
    /// [`MemoryError::Map`].
    pub fn of_image(image: &Arc<MemoryImage>) -> Result<Self, MemoryError> {
        // The first layer is all of the RAM.
        let mut ram = Self::anonymous(image.ram(), Pages::Covered)?;
        for layer in image.layers() {
            ram.overlay(GuestAddress(0), layer)?;
        }
        ram.base = Some(Arc::clone(image));
        Ok(ram)
    }

    /// Has pages come in one by one from here on, so that [`GuestRam::touched`] knows what was used. Costs a fault for each page,
    /// so it is for a guest that is to be learned from. Without it where the kernel does not let this process have it.
    pub fn observe(&mut self) {
        let observer = Observer::of(self.regions.iter().map(Arc::as_ref));
        self.observer = observer
            .inspect_err(
                |error| tracing::debug!(%error, "what a guest reads cannot be told from what lies beside it"),
            )
            .ok();
    }

    /// Whether [`GuestRam::touched`] is exact.
    pub fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    fn anonymous(bytes: u64, pages: Pages) -> Result<Self, MemoryError> {
        let failed = |source| MemoryError::Map { bytes, source };
        let regions = unsafe_map::anonymous(&layout::ram_parts(bytes), pages).map_err(failed)?;
        let memory = GuestMemoryMmap::from_arc_regions(regions.clone())
            .map_err(|error| failed(io::Error::other(error)))?;
        Ok(Self { memory, regions, overlaid: Vec::new(), base: None, observer: None })
    }

    /// Puts private mappings of the image's content at `at` + its offsets. Must come before anybody else has
    /// [`GuestRam::memory`], since the pages change under it.
    ///
    /// # Errors
    /// [`MemoryError::Outside`], [`MemoryError::Unaligned`], [`MemoryError::Map`]; the RAM is as before then, but for extents
    /// that were mapped already.
    pub fn overlay(&mut self, at: GuestAddress, image: &SealedImage) -> Result<(), MemoryError> {
        if !at.0.is_multiple_of(PAGE) {
            return Err(MemoryError::Unaligned(at.0));
        }
        for extent in image.extents() {
            let bytes = extent.end - extent.start;
            let outside = || MemoryError::Outside { address: at.0.saturating_add(extent.start), bytes };
            let guest = at.checked_add(extent.start).ok_or_else(outside)?;
            let region = self.memory.find_region(guest).ok_or_else(outside)?;
            if region.len() - (guest.0 - region.start_addr().0) < bytes {
                return Err(outside());
            }
            unsafe_map::overlay(region, guest, image.memory(), extent.clone())
                .map_err(|source| MemoryError::Map { bytes, source })?;
            self.overlaid.push(guest.0..guest.0 + bytes);
        }
        Ok(())
    }

    /// Makes it again what it was when it was [made](Self::of_image). The guest must be at rest. Nobody has a reference into it:
    /// all accesses go through vm-memory's volatile ones.
    ///
    /// # Errors
    /// It is not made of a saved guest's, or the kernel refuses, as it does for memory that is locked.
    pub fn rewind(&mut self) -> io::Result<()> {
        if self.base.is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.observer = None;
        self.regions.iter().try_for_each(|region| unsafe_map::drop_private(region))
    }

    /// What it was made of, if that was a saved guest's.
    pub(crate) fn base(&self) -> Option<&Arc<MemoryImage>> {
        self.base.as_ref()
    }

    /// Guest addresses that an image lies at.
    pub(super) fn overlaid(&self) -> &[Range<u64>] {
        &self.overlaid
    }

    /// The memory for those who read and write it, by guest address. Cheap to clone.
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// What the hypervisor is to map, one memory slot for each.
    pub fn regions(&self) -> &[Arc<GuestRegionMmap>] {
        &self.regions
    }

    /// Bytes of RAM.
    pub fn len(&self) -> u64 {
        self.memory.iter().map(GuestMemoryRegion::len).sum()
    }

    /// Never: there is no guest without memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How much of it takes host memory.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn resident(&self) -> io::Result<Resident> {
        let ranges: Vec<_> = self
            .regions
            .iter()
            .map(|region| {
                let start = region.as_ptr() as u64;
                start..start + region.len()
            })
            .collect();
        resident(&ranges)
    }

    /// The end of RAM below the device gap.
    pub fn low_end(&self) -> GuestAddress {
        GuestAddress(self.len().min(layout::DEVICE_GAP.0))
    }
}
