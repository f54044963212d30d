//! The agent's own view of the machine: the initramfs with the kernel's file systems on it.
//!
//! User code never sees any of these mounts; its root is made in [`super::user_root`].

use rustix::fs::{CWD, Mode, mkdirat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind, mount_move};

use crate::error::{During, Result};

/// Makes a folder; one that exists is fine.
pub(super) fn folder(path: &str) -> Result<()> {
    match mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno).during_with(|| format!("make the folder {path}")),
    }
}

/// Puts a mount under the agent's root directory.
///
/// The kernel unpacks an initramfs into its first mount, which `pivot_root` cannot replace ("the
/// current root is on the rootfs", pivot_root(2)). So the agent moves to a bind mount of it, on top
/// of it; the user's mount namespace can then be pivoted like any other.
///
/// # Errors
/// Whatever the kernel refused.
pub fn leave_rootfs() -> Result<()> {
    folder("/newroot")?;
    mount_bind("/", "/newroot").during("bind the initramfs onto /newroot")?;
    rustix::process::chdir("/newroot").during("enter /newroot")?;
    mount_move(".", "/").during("move the bound initramfs onto /")?;
    rustix::process::chroot(".").during("make the bound initramfs the root")?;
    rustix::process::chdir("/").during("enter the new root")
}

/// Mounts `/dev`, `/proc`, `/sys`, `/sys/fs/cgroup` and a small `/run`.
///
/// # Errors
/// Whatever the kernel refused. A `/dev` that is mounted already is fine.
pub fn kernel_file_systems() -> Result<()> {
    let safe = MountFlags::NOSUID | MountFlags::NOEXEC;
    let closed = safe | MountFlags::NODEV;
    let table = [
        ("devtmpfs", "/dev", safe, c"mode=0755"),
        ("proc", "/proc", closed, c""),
        ("sysfs", "/sys", closed, c""),
        ("cgroup2", "/sys/fs/cgroup", closed, c"favordynmods"),
        ("tmpfs", "/run", closed, c"mode=0700,size=1m,nr_inodes=64"),
    ];
    for (kind, path, flags, options) in table {
        // sysfs makes /sys/fs/cgroup itself.
        if path != "/sys/fs/cgroup" {
            folder(path)?;
        }
        match mount(kind, path, kind, flags, Some(options)) {
            Ok(()) => {}
            Err(Errno::BUSY) if path == "/dev" => {}
            // Kernels without this option still have cgroups.
            Err(Errno::INVAL) if kind == "cgroup2" => {
                mount(kind, path, kind, flags, None).during("mount the cgroup file system")?;
            }
            Err(errno) => return Err(errno).during_with(|| format!("mount {kind} on {path}")),
        }
    }
    Ok(())
}
