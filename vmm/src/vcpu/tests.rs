//! The bus. The threads are tested with guests, in `tests/bare_metal/`.

use std::sync::{Arc, Mutex};

use super::{Bus, BusError, Exits, Flow, Mmio, PortIo, StopCause};

/// Notes accesses; reads give its number. A write of 0xee stops the machine.
struct Device {
    number: u8,
    log: Arc<Mutex<Vec<(u8, u64, usize)>>>,
}

impl Device {
    fn note(&self, offset: u64, length: usize) {
        self.log.lock().unwrap().push((self.number, offset, length));
    }
}

impl Mmio for Device {
    fn read(&self, offset: u64, data: &mut [u8]) -> Flow {
        self.note(offset, data.len());
        data.fill(self.number);
        Flow::Continue(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Flow {
        self.note(offset, data.len());
        if data == [0xee] { Flow::Break(StopCause::PowerOff) } else { Flow::Continue(()) }
    }
}

impl PortIo for Device {
    fn read(&self, offset: u16, data: &mut [u8]) -> Flow {
        Mmio::read(self, offset.into(), data)
    }

    fn write(&self, offset: u16, data: &[u8]) -> Flow {
        Mmio::write(self, offset.into(), data)
    }
}

/// What a device was asked: its number, the offset, the length.
type Log = Arc<Mutex<Vec<(u8, u64, usize)>>>;

/// Devices 1 and 2 side by side in memory, 3 and 4 at ports.
fn bus() -> (Bus, Log) {
    let log = Log::default();
    let device = |number| Arc::new(Device { number, log: Arc::clone(&log) });
    let mut bus = Bus::new();
    bus.add_mmio(0x2000..0x3000, device(2)).unwrap();
    bus.add_mmio(0x1000..0x2000, device(1)).unwrap();
    bus.add_ports(0x3f8..0x400, device(3)).unwrap();
    bus.add_ports(0xffff..0x1_0000, device(4)).unwrap();
    (bus, log)
}

fn read(bus: &Bus, addr: u64, length: usize) -> Vec<u8> {
    let mut data = vec![0x55; length];
    assert!(bus.mmio_read(addr, &mut data).is_continue());
    data
}

#[test]
fn an_access_reaches_the_device_that_has_all_of_it() {
    let (bus, log) = bus();
    assert_eq!(read(&bus, 0x1000, 4), [1; 4]);
    assert_eq!(read(&bus, 0x1fff, 1), [1]);
    assert_eq!(read(&bus, 0x2000, 8), [2; 8]);
    assert_eq!(bus.stray_accesses(), 0);
    // Over a device's end, before the first, after the last, at the end of the address space.
    for (addr, length) in
        [(0x1ffe, 4), (0xfff, 1), (0x3000, 2), (0x2fff, 2), (u64::MAX, 1), (u64::MAX - 2, 8)]
    {
        assert_eq!(read(&bus, addr, length), vec![0xff; length], "{addr:#x}");
    }
    assert!(bus.mmio_write(0x3000, &[1, 2]).is_continue());
    assert_eq!(bus.stray_accesses(), 7);
    assert_eq!(*log.lock().unwrap(), [(1, 0, 4), (1, 0xfff, 1), (2, 0, 8)]);
}

#[test]
fn ports_are_devices_too() {
    let (bus, log) = bus();
    let mut data = [0; 2];
    assert!(bus.port_in(0x3f9, &mut data).is_continue());
    assert_eq!(data, [3, 3]);
    assert!(bus.port_in(0x3ff, &mut data).is_continue());
    assert_eq!(data, [0xff, 0xff]);
    assert!(bus.port_out(0xffff, &[9]).is_continue());
    assert!(bus.port_out(0xffff, &[9, 9]).is_continue());
    assert_eq!(*log.lock().unwrap(), [(3, 1, 2), (4, 0, 1)]);
    assert_eq!(bus.stray_accesses(), 2);
}

#[test]
fn a_string_is_so_many_accesses_until_one_stops_the_machine() {
    let (bus, log) = bus();
    assert!(bus.port_out_string(0x3f8, 2, &[1, 2, 3, 4, 5, 6]).is_continue());
    let mut data = [0; 4];
    assert!(bus.port_in_string(0x3f8, 1, &mut data).is_continue());
    assert_eq!(data, [3; 4]);
    log.lock().unwrap().clear();
    let flow = bus.port_out_string(0x3f8, 1, &[1, 0xee, 3]);
    assert_eq!(flow, Flow::Break(StopCause::PowerOff));
    assert_eq!(*log.lock().unwrap(), [(3, 0, 1), (3, 0, 1)]);
}

#[test]
fn devices_do_not_overlap() {
    let (mut bus, log) = bus();
    let device = Arc::new(Device { number: 9, log });
    for range in [0x1000..0x1001, 0xfff..0x1001, 0x2fff..0x3001, 0x1500..0x2500, 0..u64::MAX] {
        let result = bus.add_mmio(range.clone(), device.clone());
        assert!(matches!(result, Err(BusError::Overlap { .. })), "{range:x?}");
    }
    assert_eq!(bus.add_mmio(0x5000..0x5000, device.clone()), Err(BusError::Empty { at: 0x5000 }));
    bus.add_mmio(0x3000..0x3001, device.clone()).unwrap();
    bus.add_mmio(0x0..0x1000, device).unwrap();
}

/// Ports only, and an element at a time.
#[derive(Default)]
struct Elements(Mutex<Vec<Vec<u8>>>);

impl Exits for Elements {
    fn mmio_read(&self, _: u64, _: &mut [u8]) -> Flow {
        Flow::Continue(())
    }

    fn mmio_write(&self, _: u64, _: &[u8]) -> Flow {
        Flow::Continue(())
    }

    fn port_in(&self, _: u16, data: &mut [u8]) -> Flow {
        let mut seen = self.0.lock().unwrap();
        seen.push(Vec::new());
        data.fill(u8::try_from(seen.len()).unwrap());
        Flow::Continue(())
    }

    fn port_out(&self, _: u16, data: &[u8]) -> Flow {
        self.0.lock().unwrap().push(data.to_vec());
        if data == [3, 4] { Flow::Break(StopCause::Reset) } else { Flow::Continue(()) }
    }
}

#[test]
fn a_handler_that_knows_no_strings_gets_their_elements_in_order() {
    let handler = Elements::default();
    assert_eq!(handler.port_out_string(1, 2, &[1, 2, 3, 4, 5, 6]), Flow::Break(StopCause::Reset));
    assert_eq!(handler.0.lock().unwrap().drain(..).collect::<Vec<_>>(), [[1, 2], [3, 4]]);
    let mut data = [0; 6];
    assert!(handler.port_in_string(1, 2, &mut data).is_continue());
    assert_eq!(data, [1, 1, 2, 2, 3, 3]);
}
