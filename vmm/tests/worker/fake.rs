//! A worker that a guest has taken over, played by this test program.
//!
//! The program that owners are given is a script that starts this one again; its standard input is the socket, as a worker's.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
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

/// Gives the descriptors that came with it.
fn wait_for_request(owner: BorrowedFd<'_>) -> Vec<OwnedFd> {
    let mut buffer = vec![0; 1 << 17];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    match recvmsg(owner, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
        Ok(received) if received.bytes > 0 => {}
        _ => std::process::exit(0),
    }
    let mut all = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            all.extend(some);
        }
    }
    all
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
    let ends = wait_for_request(owner);
    match role.as_str() {
        // Would have the owner use sockets of its own making.
        "own-sockets" => send(owner, &[0], &[ends[0].as_fd(), ends[1].as_fd()]),
        "nonsense" => send(owner, &[77, 1, 2], &[]),
        "death" => std::process::exit(5),
        // Has started, as far as that can be seen, and then does one wrong thing.
        _ => {
            send(owner, &[0], &[]);
            if role == "bad-end" {
                send(ends[1].as_fd(), &[9, 9, 9], &[]);
            }
            loop {
                wait_for_request(owner);
                match role.as_str() {
                    // Ranges that are none: pages written, in the wrong order.
                    "bad-ranges" => send(owner, &[4, 2, 0x80, 0x40, 0x80, 0x60, 0, 0x80, 0x20], &[]),
                    "bad-answer" => send(owner, &[99], &[]),
                    // Changes what belongs to descriptions of open files, of all that it has.
                    "flags" => {
                        for descriptor in &ends {
                            let flags = fcntl_getfl(descriptor).unwrap();
                            fcntl_setfl(descriptor, flags - OFlags::NONBLOCK).unwrap();
                        }
                        send(owner, &[1, 4, b'd', b'o', b'n', b'e'], &[]);
                    }
                    "bad-template" => send(owner, &[3, 5, 1, 2, 3, 4, 5], &[]),
                    // Never answers.
                    _ => std::thread::sleep(Duration::from_secs(600)),
                }
            }
        }
    }
    wait_for_request(owner);
}
