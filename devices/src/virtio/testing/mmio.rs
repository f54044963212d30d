//! The driver's side of virtio-mmio, in the order of Linux (drivers/virtio/virtio_mmio.c and virtio.c).

use virtio_bindings::virtio_mmio::{
    VIRTIO_MMIO_CONFIG_GENERATION, VIRTIO_MMIO_DEVICE_FEATURES, VIRTIO_MMIO_DEVICE_FEATURES_SEL,
    VIRTIO_MMIO_DRIVER_FEATURES, VIRTIO_MMIO_DRIVER_FEATURES_SEL, VIRTIO_MMIO_INTERRUPT_ACK,
    VIRTIO_MMIO_INTERRUPT_STATUS, VIRTIO_MMIO_QUEUE_AVAIL_HIGH, VIRTIO_MMIO_QUEUE_AVAIL_LOW,
    VIRTIO_MMIO_QUEUE_DESC_HIGH, VIRTIO_MMIO_QUEUE_DESC_LOW, VIRTIO_MMIO_QUEUE_NOTIFY, VIRTIO_MMIO_QUEUE_NUM,
    VIRTIO_MMIO_QUEUE_NUM_MAX, VIRTIO_MMIO_QUEUE_READY, VIRTIO_MMIO_QUEUE_SEL, VIRTIO_MMIO_QUEUE_USED_HIGH,
    VIRTIO_MMIO_QUEUE_USED_LOW, VIRTIO_MMIO_STATUS,
};

use super::DriverQueue;
use crate::virtio::transport::mmio::{
    ACKNOWLEDGE, CONFIG_SPACE, DRIVER, DRIVER_OK, FEATURES_OK, MmioRegisters,
};

/// A driver in front of a register file.
#[derive(Clone, Copy)]
pub struct MmioDriver<'a>(pub &'a dyn MmioRegisters);

impl MmioDriver<'_> {
    /// Reads a register.
    pub fn read(&self, register: u32) -> u32 {
        let mut bytes = [0xa5; 4];
        self.0.read(register.into(), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Writes a register.
    pub fn write(&self, register: u32, value: u32) {
        self.0.write(register.into(), &value.to_le_bytes());
    }

    /// Device status.
    pub fn status(&self) -> u32 {
        self.read(VIRTIO_MMIO_STATUS)
    }

    /// Adds a bit to the status, and gives what became of it.
    pub fn add_status(&self, bit: u32) -> u32 {
        self.write(VIRTIO_MMIO_STATUS, self.status() | bit);
        self.status()
    }

    /// Resets the device.
    pub fn reset(&self) {
        self.write(VIRTIO_MMIO_STATUS, 0);
    }

    /// The features on offer.
    pub fn offered(&self) -> u64 {
        self.write(VIRTIO_MMIO_DEVICE_FEATURES_SEL, 1);
        let high = u64::from(self.read(VIRTIO_MMIO_DEVICE_FEATURES));
        self.write(VIRTIO_MMIO_DEVICE_FEATURES_SEL, 0);
        high << 32 | u64::from(self.read(VIRTIO_MMIO_DEVICE_FEATURES))
    }

    /// Resets, and goes on until the features are agreed on; gives the status.
    pub fn negotiate(&self, features: u64) -> u32 {
        self.reset();
        self.add_status(ACKNOWLEDGE);
        self.add_status(DRIVER);
        self.write(VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
        self.write(VIRTIO_MMIO_DRIVER_FEATURES, u32::try_from(features >> 32).unwrap());
        self.write(VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
        self.write(VIRTIO_MMIO_DRIVER_FEATURES, u32::try_from(features & 0xffff_ffff).unwrap());
        self.add_status(FEATURES_OK)
    }

    /// Sets queue `index` up.
    ///
    /// # Panics
    /// If the queue is taken, or smaller than that.
    pub fn set_queue(&self, index: u32, queue: &DriverQueue) {
        self.write(VIRTIO_MMIO_QUEUE_SEL, index);
        assert_eq!(self.read(VIRTIO_MMIO_QUEUE_READY), 0);
        assert!(self.read(VIRTIO_MMIO_QUEUE_NUM_MAX) >= u32::from(queue.size()));
        self.write(VIRTIO_MMIO_QUEUE_NUM, queue.size().into());
        self.set_addresses(queue.addresses());
        self.write(VIRTIO_MMIO_QUEUE_READY, 1);
    }

    /// Sets addresses of descriptor table, available ring and used ring of the selected queue.
    pub fn set_addresses(&self, addresses: [u64; 3]) {
        let registers = [
            (VIRTIO_MMIO_QUEUE_DESC_LOW, VIRTIO_MMIO_QUEUE_DESC_HIGH),
            (VIRTIO_MMIO_QUEUE_AVAIL_LOW, VIRTIO_MMIO_QUEUE_AVAIL_HIGH),
            (VIRTIO_MMIO_QUEUE_USED_LOW, VIRTIO_MMIO_QUEUE_USED_HIGH),
        ];
        for ((low, high), address) in registers.into_iter().zip(addresses) {
            self.write(low, u32::try_from(address & 0xffff_ffff).unwrap());
            self.write(high, u32::try_from(address >> 32).unwrap());
        }
    }

    /// Everything that a driver does until the device is live.
    ///
    /// # Panics
    /// If the device does not go live.
    pub fn start(&self, features: u64, queues: &[&DriverQueue]) {
        assert_ne!(self.negotiate(features) & FEATURES_OK, 0, "features refused");
        for (index, queue) in (0..).zip(queues) {
            self.set_queue(index, queue);
        }
        assert_eq!(self.add_status(DRIVER_OK), ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
    }

    /// Rings for a queue.
    pub fn ring(&self, queue: u32) {
        self.write(VIRTIO_MMIO_QUEUE_NOTIFY, queue);
    }

    /// What an interrupt handler does first; gives the status.
    pub fn take_interrupts(&self) -> u32 {
        let status = self.read(VIRTIO_MMIO_INTERRUPT_STATUS);
        self.write(VIRTIO_MMIO_INTERRUPT_ACK, status);
        status
    }

    /// Reads the configuration space as Linux does: byte by byte, and again if it changed meanwhile.
    pub fn config(&self, offset: u64, len: usize) -> Vec<u8> {
        loop {
            let generation = self.read(VIRTIO_MMIO_CONFIG_GENERATION);
            let mut bytes = vec![0; len];
            for (at, byte) in (offset..).zip(&mut bytes) {
                self.0.read(CONFIG_SPACE + at, std::slice::from_mut(byte));
            }
            if self.read(VIRTIO_MMIO_CONFIG_GENERATION) == generation {
                return bytes;
            }
        }
    }
}
