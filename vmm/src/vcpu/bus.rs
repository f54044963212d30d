//! Devices by address: what most machines hand to their virtual CPUs as [`Exits`].

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Exits, Flow};

/// A device in guest-physical memory.
pub trait Mmio: Send + Sync + 'static {
    /// The guest reads 1 to 8 bytes, `offset` bytes from the device's start.
    fn read(&self, offset: u64, data: &mut [u8]) -> Flow;
    /// The guest writes 1 to 8 bytes.
    fn write(&self, offset: u64, data: &[u8]) -> Flow;
}

/// A device at I/O ports.
pub trait PortIo: Send + Sync + 'static {
    /// The guest reads 1, 2 or 4 bytes, `offset` ports from the device's first.
    fn read(&self, offset: u16, data: &mut [u8]) -> Flow;
    /// The guest writes 1, 2 or 4 bytes.
    fn write(&self, offset: u16, data: &[u8]) -> Flow;
    /// The guest writes several times, `size` bytes each.
    fn write_string(&self, offset: u16, size: usize, data: &[u8]) -> Flow {
        for element in data.chunks_exact(size) {
            self.write(offset, element)?;
        }
        Flow::Continue(())
    }
}

/// Why a device cannot be put on a bus.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// The range is empty.
    #[error("a device at {at:#x} has no addresses")]
    Empty {
        /// Its start.
        at: u64,
    },
    /// Another device is there.
    #[error("a device at {at:#x} overlaps one at {other:#x}")]
    Overlap {
        /// Start of the new one.
        at: u64,
        /// Start of the one that is there.
        other: u64,
    },
}

/// Ranges of addresses, sorted, and who is there.
struct Ranges<H: ?Sized>(Vec<(Range<u64>, Arc<H>)>);

impl<H: ?Sized> Ranges<H> {
    fn insert(&mut self, range: Range<u64>, handler: Arc<H>) -> Result<(), BusError> {
        if range.is_empty() {
            return Err(BusError::Empty { at: range.start });
        }
        let place = self.0.partition_point(|(other, _)| other.start < range.start);
        let neighbours = [place.checked_sub(1).and_then(|before| self.0.get(before)), self.0.get(place)];
        for (other, _) in neighbours.into_iter().flatten() {
            if other.start < range.end && range.start < other.end {
                return Err(BusError::Overlap { at: range.start, other: other.start });
            }
        }
        self.0.insert(place, (range, handler));
        Ok(())
    }

    /// The device that has all of these addresses, and the offset in it.
    fn find(&self, addr: u64, length: usize) -> Option<(&H, u64)> {
        let after = self.0.partition_point(|(range, _)| range.start <= addr);
        let (range, handler) = self.0.get(after.checked_sub(1)?)?;
        let end = addr.checked_add(length as u64)?;
        (end <= range.end).then(|| (&**handler, addr - range.start))
    }
}

/// Devices by address, fixed once the virtual CPUs run. Accesses that no device has, or that leave one, read ones and write
/// nothing; they are counted.
#[derive(Default)]
pub struct Bus {
    mmio: Ranges<dyn Mmio>,
    ports: Ranges<dyn PortIo>,
    stray: AtomicU64,
}

impl<H: ?Sized> Default for Ranges<H> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl Bus {
    /// A bus without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a device at guest-physical addresses.
    ///
    /// # Errors
    /// The range is empty or taken.
    pub fn add_mmio(&mut self, range: Range<u64>, device: Arc<dyn Mmio>) -> Result<(), BusError> {
        self.mmio.insert(range, device)
    }

    /// Puts a device at I/O ports.
    ///
    /// # Errors
    /// The range is empty or taken.
    pub fn add_ports(&mut self, range: Range<u32>, device: Arc<dyn PortIo>) -> Result<(), BusError> {
        self.ports.insert(range.start.into()..range.end.into(), device)
    }

    /// Accesses that went nowhere.
    pub fn stray_accesses(&self) -> u64 {
        self.stray.load(Ordering::Relaxed)
    }

    fn stray(&self) -> Flow {
        self.stray.fetch_add(1, Ordering::Relaxed);
        Flow::Continue(())
    }

    /// The device at a port, and the offset in it.
    fn port(&self, port: u16, size: usize) -> Option<(&dyn PortIo, u16)> {
        let (device, offset) = self.ports.find(port.into(), size)?;
        Some((device, offset.try_into().ok()?))
    }
}

impl Exits for Bus {
    fn mmio_read(&self, addr: u64, data: &mut [u8]) -> Flow {
        if let Some((device, offset)) = self.mmio.find(addr, data.len()) {
            return device.read(offset, data);
        }
        data.fill(0xff);
        self.stray()
    }

    fn mmio_write(&self, addr: u64, data: &[u8]) -> Flow {
        match self.mmio.find(addr, data.len()) {
            Some((device, offset)) => device.write(offset, data),
            None => self.stray(),
        }
    }

    fn port_in(&self, port: u16, data: &mut [u8]) -> Flow {
        if let Some((device, offset)) = self.port(port, data.len()) {
            return device.read(offset, data);
        }
        data.fill(0xff);
        self.stray()
    }

    fn port_out(&self, port: u16, data: &[u8]) -> Flow {
        match self.port(port, data.len()) {
            Some((device, offset)) => device.write(offset, data),
            None => self.stray(),
        }
    }

    fn port_out_string(&self, port: u16, size: usize, data: &[u8]) -> Flow {
        match self.port(port, size) {
            Some((device, offset)) => device.write_string(offset, size, data),
            None => self.stray(),
        }
    }
}
