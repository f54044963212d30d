//! A worker that a guest has taken over, played by this test program.
//!
//! The program that owners are given is a script that starts this one again; its standard input is the socket, as a worker's.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};

/// The variable that says what it does.
const ROLE: &str = "HAYFORK_TEST_ROLE";

/// A program that behaves as `role` says, for this test program's own [`role`].
pub(crate) fn program(folder: &Path, role: &str) -> PathBuf {
    let path = folder.join(role);
    let this = std::env::current_exe().unwrap();
    let script = format!(
        "#!/bin/sh\n{ROLE}={role} exec {} --exact fake::role --nocapture >/dev/null\n",
        this.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

fn send(owner: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let _ = sendmsg(owner, &[IoSlice::new(&[0]), IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
}

/// postcard's form of a worker's first message.
fn hello(version: &str) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(version.len()).unwrap()];
    bytes.extend(version.as_bytes());
    bytes.push(0);
    bytes
}

fn wait_for_request(owner: BorrowedFd<'_>) {
    let mut buffer = vec![0; 1 << 17];
    match recv(owner, &mut buffer[..], rustix::net::RecvFlags::empty()) {
        Ok((0, _)) | Err(_) => std::process::exit(0),
        Ok(_) => {}
    }
}

/// Plays a worker, if this process was started as one.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let stdin = std::io::stdin();
    let owner = stdin.as_fd();
    let version = env!("CARGO_PKG_VERSION");
    match role.as_str() {
        "silent-death" => std::process::exit(3),
        "old" => send(owner, &hello("0.0.1\x1b[31m"), &[]),
        "babbler" => send(owner, &[255; 3000], &[]),
        _ => send(owner, &hello(version), &[]),
    }
    wait_for_request(owner);
    match role.as_str() {
        // Says that it has started, and gives no way to the machine.
        "no-descriptors" => send(owner, &[0], &[]),
        "nonsense" => send(owner, &[77, 1, 2], &[]),
        "death" => std::process::exit(5),
        // Has started, as far as that can be seen, and then does one wrong thing.
        _ => {
            let pair = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
            let (_channel, theirs) = pair(SocketType::STREAM);
            let (end, their_end) = pair(SocketType::SEQPACKET);
            send(owner, &[0], &[theirs.as_fd(), their_end.as_fd()]);
            drop((theirs, their_end));
            if role == "bad-end" {
                send(end.as_fd(), &[9, 9, 9], &[]);
            }
            loop {
                wait_for_request(owner);
                match role.as_str() {
                    // Ranges that are none: pages written, in the wrong order.
                    "bad-ranges" => send(owner, &[4, 2, 0x80, 0x40, 0x80, 0x60, 0, 0x80, 0x20], &[]),
                    "bad-answer" => send(owner, &[99], &[]),
                    "bad-template" => send(owner, &[3, 5, 1, 2, 3, 4, 5], &[]),
                    // Never answers.
                    _ => std::thread::sleep(Duration::from_secs(600)),
                }
            }
        }
    }
    wait_for_request(owner);
}
