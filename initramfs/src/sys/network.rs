//! Bringing a network interface up.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Sets `IFF_UP` on the interface; the kernel gives `lo` its addresses by itself then.
///
/// # Errors
/// The kernel's errno; `ENODEV` if there is no such interface.
pub fn interface_up(name: &str) -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: ifreq is plain data for which all zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(Errno::NAMETOOLONG);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: both calls take a pointer to a whole ifreq; the first fills in the flags member of the
    // union, which is then the one that is read and changed. (libc's ioctl has its request type by
    // platform, hence the inferred cast.)
    unsafe {
        if libc::ioctl(fd, libc::SIOCGIFFLAGS as _, &raw mut request) < 0 {
            return Err(errno());
        }
        #[allow(clippy::cast_possible_truncation)] // IFF_UP is 1
        let up = libc::IFF_UP as libc::c_short;
        request.ifr_ifru.ifru_flags |= up;
        if libc::ioctl(fd, libc::SIOCSIFFLAGS as _, &raw const request) < 0 {
            return Err(errno());
        }
    }
    Ok(())
}
