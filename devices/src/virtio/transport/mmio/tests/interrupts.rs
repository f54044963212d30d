//! Interrupts between threads: none is lost, none outlives a reset, none waits for the device.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INTERRUPT_STATUS};

use super::super::interrupt::Interrupt;
use super::super::{INTERRUPT_CONFIG, INTERRUPT_QUEUE};
use super::Rig;
use crate::virtio::Progress;
use crate::virtio::testing::Segment;

#[test]
fn an_ack_clears_just_its_bits() {
    let mut rig = Rig::live();
    rig.queues[0].add(&[Segment::readable(0x8000, 1)]);
    rig.device.process_queue(0);
    rig.device.config_changed();
    let driver = rig.driver();
    assert_eq!(driver.read(VIRTIO_MMIO_INTERRUPT_STATUS), INTERRUPT_QUEUE | INTERRUPT_CONFIG);
    driver.write(VIRTIO_MMIO_INTERRUPT_ACK, 0);
    driver.write(VIRTIO_MMIO_INTERRUPT_ACK, 0xffff_fff0);
    assert_eq!(driver.read(VIRTIO_MMIO_INTERRUPT_STATUS), INTERRUPT_QUEUE | INTERRUPT_CONFIG);
    driver.write(VIRTIO_MMIO_INTERRUPT_ACK, INTERRUPT_QUEUE);
    assert_eq!(driver.read(VIRTIO_MMIO_INTERRUPT_STATUS), INTERRUPT_CONFIG);
    assert_eq!(rig.pulses(), 2);
}

/// An edge is needed for each event, also while an older one is not acknowledged: the driver may be between
/// its reading and its ACK.
#[test]
fn every_event_makes_a_pulse() {
    let mut rig = Rig::live();
    for _ in 0..3 {
        rig.queues[0].add(&[Segment::readable(0x8000, 1)]);
        rig.device.process_queue(0);
    }
    assert_eq!(rig.pulses(), 3);
}

/// At the moment of the pulse the bits are there.
#[test]
fn the_bits_come_before_the_pulse() {
    let seen = Arc::new(AtomicU64::new(0));
    let interrupt: Arc<std::sync::OnceLock<Interrupt>> = Arc::default();
    let (in_line, counter) = (interrupt.clone(), seen.clone());
    let line = move || {
        let status = in_line.get().unwrap().status();
        counter.fetch_add(u64::from(status), Ordering::SeqCst);
    };
    interrupt.set(Interrupt::new(Box::new(line))).unwrap();
    interrupt.get().unwrap().raise(INTERRUPT_CONFIG);
    assert_eq!(seen.load(Ordering::SeqCst), u64::from(INTERRUPT_CONFIG));
}

/// One thread makes work known, the other handles it only when it is interrupted and finds the bit, as a
/// driver does. In the end all of it was handled.
#[test]
fn no_interrupt_is_lost_between_two_threads() {
    const EVENTS: u64 = 50_000;
    let (line, pulses) = mpsc::channel();
    let interrupt = Arc::new(Interrupt::new(Box::new(move || line.send(()).unwrap_or_default())));
    let work = Arc::new(AtomicU64::new(0));
    let handler = {
        let (interrupt, work) = (interrupt.clone(), work.clone());
        thread::spawn(move || {
            let mut handled = 0;
            while handled < EVENTS {
                if pulses.recv_timeout(Duration::from_secs(20)).is_err() {
                    return handled;
                }
                // An edge-triggered line remembers one pulse only.
                while pulses.try_recv().is_ok() {}
                let status = interrupt.status();
                interrupt.acknowledge(status);
                if status & INTERRUPT_QUEUE != 0 {
                    handled = work.load(Ordering::SeqCst);
                }
            }
            handled
        })
    };
    for event in 1..=EVENTS {
        work.store(event, Ordering::SeqCst);
        interrupt.raise(INTERRUPT_QUEUE);
    }
    assert_eq!(handler.join().unwrap(), EVENTS);
}

/// A vCPU in its handler gets by while the device is at work.
#[test]
fn handlers_do_not_wait_for_a_busy_device() {
    let rig = Arc::new(Rig::live());
    let (busy, go_on) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    let worker = {
        let (rig, busy, go_on) = (rig.clone(), busy.clone(), go_on.clone());
        thread::spawn(move || {
            rig.device.with_device(|_, queues, _| {
                assert!(queues.is_some());
                busy.wait();
                while !go_on.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                ((), Ok(Progress { interrupt: true, ..Progress::default() }))
            });
        })
    };
    busy.wait();
    // All of these would hang here if they took the lock.
    rig.driver().take_interrupts();
    rig.driver().status();
    rig.driver().ring(0);
    rig.driver().read(virtio_bindings::virtio_mmio::VIRTIO_MMIO_CONFIG_GENERATION);
    rig.driver().read(virtio_bindings::virtio_mmio::VIRTIO_MMIO_MAGIC_VALUE);
    go_on.store(true, Ordering::SeqCst);
    worker.join().unwrap();
    assert_eq!(rig.driver().take_interrupts(), INTERRUPT_QUEUE);
}

/// A reset that the driver asks for while the device is at work returns when that work is done, and what it
/// had to tell is forgotten with it.
#[test]
fn a_reset_drains_what_is_in_flight() {
    let rig = Arc::new(Rig::live());
    let busy = Arc::new(Barrier::new(2));
    let done = Arc::new(AtomicBool::new(false));
    let worker = {
        let (rig, busy, done) = (rig.clone(), busy.clone(), done.clone());
        thread::spawn(move || {
            rig.device.with_device(|_, _, _| {
                busy.wait();
                thread::sleep(Duration::from_millis(50));
                done.store(true, Ordering::SeqCst);
                ((), Ok(Progress { interrupt: true, ..Progress::default() }))
            });
        })
    };
    busy.wait();
    rig.driver().reset();
    assert!(done.load(Ordering::SeqCst), "the reset did not wait");
    assert_eq!(rig.driver().take_interrupts(), 0);
    worker.join().unwrap();
    assert_eq!(rig.driver().take_interrupts(), 0, "an interrupt outlived the reset");
    assert_eq!(rig.device.device(|mock| mock.resets), 2);
}

/// Readers of the configuration never see half of an old and half of a new one.
#[test]
fn configurations_are_read_whole() {
    let rig = Arc::new(Rig::live());
    let writer = {
        let rig = rig.clone();
        thread::spawn(move || {
            for n in 0..2000u32 {
                let byte = n.to_le_bytes()[0];
                rig.device.with_device(|mock, _, _| {
                    mock.config = [byte; 8];
                    ((), Ok(Progress { config_changed: true, ..Progress::default() }))
                });
            }
        })
    };
    while !writer.is_finished() {
        let config = rig.driver().config(0, 8);
        assert!(config.iter().all(|byte| *byte == config[0]), "{config:?}");
    }
    writer.join().unwrap();
}
