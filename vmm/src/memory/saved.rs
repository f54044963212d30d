//! A guest's RAM, kept to make other guests of.
//!
//! ```text
//!            layer 2   what a clone had written when it was captured itself        [   ##      #   ]
//!            layer 1   all RAM of the guest that was captured first             [####################]
//!                                                                                ▲ MAP_PRIVATE
//!  a guest made of them: its own pages where it wrote, else the uppermost layer's
//! ```
//! Offsets in a layer are guest addresses. The first layer is mapped as a whole, its holes as zeroes; those above only where
//! they have content. Capturing a clone costs what it has written, not what it has; when the layers become many, the next one
//! is a first layer again.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress, WriteVolatile};

use super::image::failed;
use super::ram::GuestRam;
use super::written::{Runs, Which, pages};
use super::{ForeignImage, ImageError, PAGE, SealedImage, layout, unsafe_map, writable_memory};

/// Layers at most: each costs mappings in every guest.
pub(crate) const MAX_LAYERS: usize = 4;

/// Untouched pages between two written ones that are copied with them: each run of pages is a mapping in every guest.
const GAP: u64 = 16;

/// The RAM of a guest at rest. Nobody can change it.
#[derive(Debug)]
pub struct MemoryImage {
    ram: u64,
    layers: Vec<Arc<SealedImage>>,
}

impl MemoryImage {
    /// RAM of `ram` bytes with the content of one file of memory, whose offsets are guest addresses.
    pub(crate) fn whole(ram: u64, memory: OwnedFd) -> Result<Self, ImageError> {
        let parts = layout::ram_parts(ram);
        let extents = parts.into_iter().map(|(start, bytes)| start.0..start.0 + bytes).collect();
        Ok(Self { ram, layers: vec![Arc::new(SealedImage::seal_as(memory, extents)?)] })
    }

    /// RAM of `ram` bytes with layers that another process made, lowest first.
    ///
    /// # Errors
    /// [`ForeignImage::Extents`]: layers that are none, too many, too long, or not of that RAM.
    pub(crate) fn of_layers(ram: u64, layers: Vec<SealedImage>) -> Result<Self, ForeignImage> {
        let parts = layout::ram_parts(ram);
        let fits = |extent: &Range<u64>| {
            parts.iter().any(|(start, bytes)| start.0 <= extent.start && extent.end <= start.0 + bytes)
        };
        let all_fit = layers.iter().flat_map(SealedImage::extents).all(fits);
        let too_long = layers.iter().any(|layer| layer.len() > end_of(ram));
        if ram == 0 || !(1..=MAX_LAYERS).contains(&layers.len()) || !all_fit || too_long {
            return Err(ForeignImage::Extents);
        }
        Ok(Self { ram, layers: layers.into_iter().map(Arc::new).collect() })
    }

    /// Bytes of RAM.
    pub fn ram(&self) -> u64 {
        self.ram
    }

    /// RAM of `ram` bytes as it was loaded: whole, and as long as its parts reach.
    ///
    /// # Errors
    /// It is not that long, or cannot be sealed.
    pub(crate) fn loaded(ram: u64, length: u64, memory: OwnedFd) -> Result<Option<Self>, ImageError> {
        if ram == 0 || !ram.is_multiple_of(PAGE) || length != end_of(ram) {
            return Ok(None);
        }
        Self::whole(ram, memory).map(Some)
    }

    /// Bytes from the first guest address to behind the last.
    pub(crate) fn span(&self) -> u64 {
        end_of(self.ram)
    }

    /// Where each page that is not a hole is to be found, in order: at its own address in one of the layers.
    pub(crate) fn pieces(&self) -> Vec<(Range<u64>, BorrowedFd<'_>)> {
        let mut pieces: Vec<(Range<u64>, BorrowedFd<'_>)> = Vec::new();
        for layer in &self.layers {
            // The uppermost layer that covers a page has it, if only as a hole.
            pieces = without(pieces, layer.extents());
            pieces.extend(layer.content().into_iter().map(|range| (range, layer.memory())));
            pieces.sort_unstable_by_key(|(range, _)| range.start);
        }
        pieces
    }

    /// The layers, lowest first.
    pub(crate) fn layers(&self) -> &[Arc<SealedImage>] {
        &self.layers
    }

    /// How many layers there are.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }
}

/// The end of guest addresses of RAM of that size.
pub(crate) fn end_of(ram: u64) -> u64 {
    layout::ram_parts(ram).last().map_or(0, |(start, bytes)| start.0 + bytes)
}

/// What is left of pieces when these ranges are taken away. Both are in order, and neither has two that overlap.
fn without<T: Copy>(pieces: Vec<(Range<u64>, T)>, taken: &[Range<u64>]) -> Vec<(Range<u64>, T)> {
    let mut left = Vec::with_capacity(pieces.len());
    let mut taken = taken.iter().peekable();
    for (mut piece, of) in pieces {
        while taken.next_if(|taken| taken.end <= piece.start).is_some() {}
        while let Some(next) = taken.peek().filter(|taken| taken.start < piece.end) {
            if piece.start < next.start {
                left.push((piece.start..next.start, of));
            }
            piece.start = next.end.min(piece.end);
            if next.end > piece.end || taken.next().is_none() {
                break;
            }
        }
        if !piece.is_empty() {
            left.push((piece, of));
        }
    }
    left
}

impl GuestRam {
    /// Keeps the content as it is now. The guest must be at rest.
    ///
    /// # Errors
    /// There is no memory or descriptor left.
    pub fn capture(&self) -> Result<MemoryImage, ImageError> {
        match self.base() {
            Some(base) if base.depth() < MAX_LAYERS => {
                let memory = self.file()?;
                let runs = self.written(GAP)?;
                self.copy(&runs, &memory)?;
                let layer = SealedImage::seal_as(memory.into(), runs)?;
                let layers = base.layers.iter().cloned().chain([Arc::new(layer)]).collect();
                Ok(MemoryImage { ram: self.len(), layers })
            }
            _ => {
                let memory = self.file()?;
                let mut content: Vec<_> = self.written(0)?;
                // A first layer that was mapped as a whole need not be copied as a whole.
                match self.base() {
                    Some(base) => content.extend(base.layers.iter().flat_map(|layer| layer.content())),
                    None => content.extend(self.overlaid().iter().cloned()),
                }
                content.sort_unstable_by_key(|range| range.start);
                let mut runs = Runs { all: Vec::new(), gap: 0 };
                for range in content {
                    runs.add(range);
                }
                self.copy(&runs.all, &memory)?;
                MemoryImage::whole(self.len(), memory.into())
            }
        }
    }

    /// An image of what was written into it, up to the guest address `end`.
    ///
    /// It is not written into the image's memory at once by a mapping of that: a child that the process makes by `fork` in the
    /// meantime would have the mapping too, and what anybody could still write to cannot be sealed.
    ///
    /// # Errors
    /// There is no memory or descriptor left.
    pub(crate) fn into_image(self, name: &str, end: u64) -> Result<SealedImage, ImageError> {
        let memory = File::from(writable_memory(name)?);
        let end = end.next_multiple_of(PAGE);
        rustix::fs::ftruncate(&memory, end).map_err(failed("sizing memory for an image"))?;
        let mut runs = self.written(0)?;
        runs.retain(|run| run.start < end);
        if let Some(last) = runs.last_mut() {
            last.end = last.end.min(end);
        }
        self.copy(&runs, &memory)?;
        SealedImage::seal(memory.into())
    }

    /// Guest addresses of pages that this guest has written, in whole pages, in order. Those less than `gap` pages apart come as
    /// one.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn written(&self, gap: u64) -> Result<Vec<Range<u64>>, ImageError> {
        self.pages(Which::Written, gap)
    }

    /// Guest addresses of pages that this guest has read or written, as [`GuestRam::written`]; with those around them where it is
    /// not [observed](GuestRam::observe).
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn touched(&self) -> Result<Vec<Range<u64>>, ImageError> {
        self.pages(Which::Touched, 0)
    }

    fn pages(&self, which: Which, gap: u64) -> Result<Vec<Range<u64>>, ImageError> {
        let mut all = Vec::new();
        for region in self.regions() {
            let start = region.start_addr().0;
            let runs = pages(which, region.as_ptr() as u64, region.len(), gap)
                .map_err(failed("looking for pages in use"))?;
            all.extend(runs.into_iter().map(|run| start + run.start..start + run.end));
        }
        Ok(all)
    }

    /// Gives the guest pages of its own in these ranges, as it is going to write to them. Only makes it faster, so nothing is
    /// said of what does not work.
    pub fn populate(&self, ranges: &[Range<u64>]) {
        for range in ranges {
            let Some(region) = self.memory().find_region(GuestAddress(range.start)) else { continue };
            let start = region.start_addr().0;
            if range.end - start <= region.len()
                && let Err(error) = unsafe_map::populate(region, range.start - start..range.end - start)
            {
                tracing::debug!(%error, "pages of a guest are not made ahead");
                return;
            }
        }
    }

    fn file(&self) -> Result<File, ImageError> {
        let memory = writable_memory("hayfork-template")?;
        rustix::fs::ftruncate(&memory, end_of(self.len()))
            .map_err(failed("sizing memory for a guest's copy"))?;
        Ok(memory.into())
    }

    fn copy(&self, ranges: &[Range<u64>], mut memory: &File) -> Result<(), ImageError> {
        let failed = failed::<std::io::Error>("copying a guest's memory");
        for range in ranges {
            let Some(region) = self.memory().find_region(GuestAddress(range.start)) else { continue };
            let offset = MemoryRegionAddress(range.start - region.start_addr().0);
            let size = usize::try_from(range.end - range.start).unwrap_or(0);
            let slice =
                region.get_slice(offset, size).map_err(|error| failed(std::io::Error::other(error)))?;
            memory.seek(SeekFrom::Start(range.start)).map_err(&failed)?;
            memory.write_all_volatile(&slice).map_err(|error| failed(std::io::Error::other(error)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
