//! AF_VSOCK listener: neither std nor rustix has its address type.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, listen, socket_with};

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A non-blocking listener on `port`, for any of this machine's context ids.
///
/// # Errors
/// The kernel's errno; `EAFNOSUPPORT` if the kernel has no vsock.
pub fn listen_on(port: u32) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::VSOCK, SocketType::STREAM, flags, None)?;
    // SAFETY: sockaddr_vm is plain data for which all zeroes are valid.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    #[allow(clippy::cast_possible_truncation)] // 40
    let family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_family = family;
    address.svm_port = port;
    address.svm_cid = libc::VMADDR_CID_ANY;
    #[allow(clippy::cast_possible_truncation)] // 16
    let length = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: the pointer is to a whole sockaddr_vm of that length.
    if unsafe { libc::bind(socket.as_fd().as_raw_fd(), (&raw const address).cast(), length) } < 0 {
        return Err(errno());
    }
    listen(&socket, 4)?;
    Ok(socket)
}

/// Takes the next connection, with the context id of its other end, or `None` if none waits.
///
/// # Errors
/// The kernel's errno.
pub fn accept(listener: &OwnedFd) -> Result<Option<(OwnedFd, u32)>, Errno> {
    // SAFETY: sockaddr_vm is plain data for which all zeroes are valid.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    #[allow(clippy::cast_possible_truncation)] // 16
    let mut length = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: address and length are locals; the kernel writes at most `length` bytes.
    let fd = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            (&raw mut address).cast(),
            &raw mut length,
            libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
        )
    };
    if fd < 0 {
        return match errno() {
            Errno::AGAIN | Errno::INTR | Errno::CONNABORTED => Ok(None),
            errno => Err(errno),
        };
    }
    // SAFETY: the kernel just returned it and nobody else owns it.
    let connection = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(Some((connection, address.svm_cid)))
}
