//! The few system calls that std lacks, declared by hand: this program is one file for rustc, without
//! crates.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

const AF_VSOCK: u16 = 40;
const SOCK_STREAM: c_int = 1;
const SOCK_CLOEXEC: c_int = 0o2_000_000;
const RB_AUTOBOOT: c_int = 0x0123_4567;

/// `struct sockaddr_vm` of Linux.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Address {
    family: u16,
    reserved: u16,
    port: u32,
    cid: u32,
    flags: u8,
    zero: [u8; 3],
}

unsafe extern "C" {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn bind(fd: c_int, address: *const Address, len: u32) -> c_int;
    fn connect(fd: c_int, address: *const Address, len: u32) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept4(fd: c_int, address: *mut Address, len: *mut u32, flags: c_int) -> c_int;
    fn reboot(how: c_int) -> c_int;
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn address(cid: u32, port: u32) -> (Address, u32) {
    let address = Address { family: AF_VSOCK, port, cid, ..Address::default() };
    (address, size_of::<Address>() as u32)
}

fn new_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = check(unsafe { socket(c_int::from(AF_VSOCK), SOCK_STREAM | SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel just gave this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Connects to a port of the peer `cid`. Std's calls on a Unix stream (read, write, shutdown) are the same
/// system calls for this family.
pub(crate) fn connect_to(cid: u32, port: u32) -> io::Result<UnixStream> {
    let fd = new_socket()?;
    let (address, len) = address(cid, port);
    // SAFETY: the address lives across the call and has this length.
    check(unsafe { connect(fd.as_raw_fd(), &raw const address, len) })?;
    Ok(UnixStream::from(fd))
}

/// A socket that listens on `port` for any peer.
pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn new(port: u32) -> io::Result<Self> {
        let fd = new_socket()?;
        let (address, len) = address(u32::MAX, port);
        // SAFETY: the address lives across the call and has this length.
        check(unsafe { bind(fd.as_raw_fd(), &raw const address, len) })?;
        // SAFETY: no pointers.
        check(unsafe { listen(fd.as_raw_fd(), 128) })?;
        Ok(Self(fd))
    }

    pub(crate) fn accept(&self) -> io::Result<UnixStream> {
        let null = std::ptr::null_mut();
        // SAFETY: the kernel writes no address where both pointers are null.
        let fd = check(unsafe { accept4(self.0.as_raw_fd(), null, null.cast(), SOCK_CLOEXEC) })?;
        // SAFETY: the kernel just gave this descriptor, and nobody else has it.
        Ok(UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

/// Ends the machine.
pub(crate) fn restart() {
    // SAFETY: no pointers; only returns on failure.
    unsafe { reboot(RB_AUTOBOOT) };
}
