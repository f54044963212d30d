#![allow(clippy::single_range_in_vec_init, clippy::reversed_empty_ranges)] // lists of ranges, some of them wrong

use super::*;
use crate::worker::packet;

fn launch() -> Launch {
    Launch {
        ram: 128 << 20,
        vcpus: 1,
        kernel: vec![0x100_0000..0x110_0000, 0x120_0000..0x120_1000],
        kernel_entry: 0x100_0000,
        kernel_end: 0x130_0000,
        initramfs: vec![0..0x1000],
        initramfs_len: 77,
        root: true,
        command_line: "quiet".into(),
        console_bytes: 4096,
    }
}

#[test]
fn impossible_machines_are_refused() {
    launch().validate().unwrap();
    let bad: &[fn(&mut Launch)] = &[
        |l| l.ram = 0,
        |l| l.ram = 4097,
        |l| l.ram = !4095,
        |l| l.vcpus = 0,
        |l| l.vcpus = 33,
        |l| l.kernel[0].start = 1,
        |l| l.kernel[1].start = 0x100_0000,
        |l| l.kernel[1] = 0x200_0000..0x130_0000,
        |l| l.kernel[1].end = !4095,
        |l| l.kernel_entry = l.kernel_end,
        |l| l.kernel_end = u64::MAX,
        |l| l.initramfs = vec![0..l.ram + 4096],
        |l| l.initramfs = vec![0..0],
        |l| l.initramfs_len = l.ram + 1,
        |l| l.command_line = "x".repeat(10_000),
        |l| l.console_bytes = 0,
        |l| l.console_bytes = u64::MAX,
    ];
    for (number, change) in bad.iter().enumerate() {
        let mut launch = launch();
        change(&mut launch);
        assert!(launch.validate().is_err(), "{number}: {launch:?}");
    }
}

#[test]
fn pages_lie_in_ram_and_in_order() {
    let ram = 4 << 30;
    let of = |working_set| Restore { saved: Vec::new(), working_set }.validate(ram);
    // RAM goes on above the gap for devices.
    of(vec![0..4096, 8192..12288, 0x1_3fff_f000..0x1_4000_0000]).unwrap();
    for bad in [vec![0..0x1_4000_1000], vec![4096..8192, 0..4096], vec![0..1], vec![4096..4096]] {
        assert!(of(bad.clone()).is_err(), "{bad:?}");
        assert!(Answer::WorkingSet(bad).validate(ram).is_err());
    }
}

#[test]
fn messages_are_read_as_they_were_written_and_not_otherwise() {
    let all = [
        Request::Launch(launch()),
        Request::Restore(Restore { saved: vec![1, 2, 3], working_set: vec![0..4096] }),
        Request::ConsoleTail,
        Request::HostMemory,
        Request::Capture,
        Request::WorkingSet,
    ];
    for request in all {
        let bytes = packet::encode(&request).unwrap();
        assert_eq!(packet::decode::<Request>(&bytes).unwrap(), request);
        assert!(packet::decode::<Request>(&[&bytes[..], &[0]].concat()).is_err());
        for cut in 0..bytes.len() {
            // Some beginnings are messages; none is this one.
            assert!(!packet::decode::<Request>(&bytes[..cut]).is_ok_and(|other| other == request));
        }
    }
}

#[test]
fn errors_keep_code_message_and_remedy_and_command_no_terminal() {
    let error = BackendError::Spawn {
        what: "mapping memory",
        source: std::io::Error::from_raw_os_error(libc::ENOMEM),
    };
    let copy = Failure::of(&error).into_error();
    assert_eq!((copy.code(), copy.remedy()), (error.code(), error.remedy()));
    let message = copy.to_string();
    // In the words of the C library.
    let cause = std::io::Error::from_raw_os_error(libc::ENOMEM);
    assert!(message.contains(&format!("mapping memory: {cause}")), "{message}");
    let hostile = Failure {
        code: "qemu_missing\n".into(),
        message: "\x1b]0;x\x07".into(),
        remedy: "y".repeat(1 << 20),
    };
    let hostile = hostile.into_error();
    assert_eq!((hostile.code(), hostile.to_string().as_str()), ("worker_failed", "]0;x"));
    assert!(hostile.remedy().len() <= 4000);
}

#[test]
fn ends_keep_their_kind() {
    for kind in [ExitKind::PowerOff, ExitKind::Panic, ExitKind::Killed, ExitKind::Crashed] {
        let report = ExitReport {
            kind,
            status: ProcessStatus::None,
            console_tail: "said\n".into(),
            stderr_tail: "why".into(),
        };
        assert_eq!(End::of(report.clone()).into_report(), report);
    }
}

#[test]
fn lists_are_not_read_beyond_what_can_be() {
    let range = 0..crate::memory::PAGE;
    let bytes = |working_set| packet::encode(&Restore { saved: Vec::new(), working_set }).unwrap();
    packet::decode::<Restore>(&bytes(vec![range.clone(); MAX_EXTENTS])).unwrap();
    packet::decode::<Restore>(&bytes(vec![range.clone(); MAX_EXTENTS + 1])).unwrap_err();
    let answer = |count| packet::encode(&Answer::WorkingSet(vec![range.clone(); count])).unwrap();
    packet::decode::<Answer>(&answer(MAX_EXTENTS)).unwrap();
    packet::decode::<Answer>(&answer(MAX_EXTENTS + 1)).unwrap_err();
    // Of many that are empty, which take 1 byte here and 24 there.
    let good = crate::worker::testing::saved();
    let mut saved = packet::decode::<Saved>(&packet::encode(&good).unwrap()).unwrap();
    assert_eq!(saved, good);
    saved.layers = vec![Vec::new(); MAX_LAYERS + 1];
    packet::decode::<Saved>(&packet::encode(&saved).unwrap()).unwrap_err();
    let mut saved = good.clone();
    saved.state.vcpus = vec![saved.state.vcpus[0].clone(); 33];
    packet::decode::<Saved>(&packet::encode(&saved).unwrap()).unwrap_err();
    let mut saved = good;
    saved.state.vcpus[0].msrs = vec![crate::hypervisor::x86_64::Msr { index: 1, value: 1 }; 1025];
    packet::decode::<Saved>(&packet::encode(&saved).unwrap()).unwrap_err();
}
