//! For tests that feed owners and workers anything.

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use super::packet::{self, PacketError, Take};
use super::wire::{Answer, Confinement, End, EndKind, Failure, Hello, Launch, Request, Restore, Saved};

/// RAM of the machine that [`examine`] takes messages for.
const RAM: u64 = 4 << 30;

/// A small machine at rest.
pub(super) fn saved() -> Saved {
    Saved {
        state: crate::monitor::testing::machine(),
        ram: RAM,
        layers: vec![vec![Range { start: 0, end: 4096 }, Range { start: 8192, end: 16384 }], Vec::new()],
        root: true,
        console_bytes: 4096,
    }
}

/// A message of each kind, as bytes.
///
/// # Errors
/// There is no memory.
pub fn samples() -> Result<Vec<Vec<u8>>, PacketError> {
    let pages = vec![Range { start: 0, end: 4096 }, Range { start: 8192, end: 16384 }];
    let launch = Launch {
        ram: RAM,
        vcpus: 2,
        kernel: pages.clone(),
        kernel_entry: 0x100_0000,
        kernel_end: 0x200_0000,
        initramfs: pages.clone(),
        initramfs_len: 5000,
        root: true,
        command_line: "quiet".to_owned(),
        console_bytes: 4096,
    };
    let failure = Failure { code: "spawn_failed".into(), message: "m".into(), remedy: "r".into() };
    let mut all =
        vec![packet::encode(&Hello { version: "1".into(), confinement: Confinement { landlock: Some(7) } })?];
    for request in [
        Request::Launch(launch),
        Request::Restore(Restore { saved: packet::encode(&saved())?, working_set: pages.clone() }),
        Request::ConsoleTail,
        Request::Capture,
    ] {
        all.push(packet::encode(&request)?);
    }
    for answer in [
        Answer::Started,
        Answer::ConsoleTail("said".into()),
        Answer::HostMemory(Some((1, 2, 3))),
        Answer::Captured(packet::encode(&saved())?),
        Answer::WorkingSet(pages),
        Answer::Failed(failure),
    ] {
        all.push(packet::encode(&answer)?);
    }
    all.push(packet::encode(&saved())?);
    all.push(packet::encode(&End { kind: EndKind::Panic, console_tail: "c".into(), detail: "d".into() })?);
    Ok(all)
}

/// Reads bytes as each kind of message, and does with it what owner and worker do before they believe it. Whether it was any.
pub fn examine(bytes: &[u8]) -> bool {
    let mut any = false;
    if let Ok(request) = packet::decode::<Request>(bytes) {
        any = true;
        let again = packet::encode(&request).and_then(|bytes| packet::decode::<Request>(&bytes));
        assert!(again.is_ok_and(|again| again == request));
        match request {
            Request::Launch(launch) if launch.validate().is_ok() => {
                assert!(launch.ram > 0 && launch.kernel_entry < launch.kernel_end);
            }
            Request::Restore(restore) => {
                let _ = restore.validate(RAM);
                any |= examine_saved(&restore.saved);
            }
            _ => {}
        }
    }
    if let Ok(answer) = packet::decode::<Answer>(bytes) {
        any = true;
        if answer.validate(RAM).is_ok()
            && let Answer::WorkingSet(pages) = &answer
        {
            assert!(pages.iter().all(|range| range.start < range.end && range.end <= RAM + (1 << 30)));
        }
        match answer {
            Answer::Failed(failure) => {
                let error = failure.into_error();
                assert!(!error.to_string().contains('\x1b') && !error.code().is_empty());
            }
            Answer::Captured(saved) => any |= examine_saved(&saved),
            _ => {}
        }
    }
    if let Ok(end) = packet::decode::<End>(bytes) {
        any = true;
        assert!(!end.into_report().console_tail.contains('\x1b'));
    }
    any | packet::decode::<Hello>(bytes).is_ok() | examine_saved(bytes)
}

fn examine_saved(bytes: &[u8]) -> bool {
    let Ok(saved) = packet::decode::<Saved>(bytes) else { return false };
    if saved.validate().is_ok() {
        // Without the memory that belongs to it.
        assert!(saved.into_template(Vec::new()).is_err());
    }
    true
}

/// Sends a packet of these bytes, with memory if there is any, and gives what arrives as a message.
///
/// # Errors
/// It cannot be sent, or is no message.
pub fn receive(bytes: &[u8], memory: Option<&[u8]>, sealed: bool) -> Result<Vec<u8>, PacketError> {
    let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    match memory {
        None => {
            rustix::net::send(&here, bytes, SendFlags::NOSIGNAL)?;
        }
        Some(memory) => {
            let memory = packet::memory_of(memory, sealed)?;
            packet::send_packet(here.as_fd(), &[bytes], &[memory.as_fd()], None)?;
        }
    }
    drop(here);
    let until = Take::Until(Some(Instant::now()));
    packet::receive_bytes(there.as_fd(), until).map(|(bytes, _)| bytes)
}
