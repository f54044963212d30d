use super::*;
use crate::sys::fork::{Side, exit_now, fork};

/// Runs `check` in a process under the filters and returns whether it held.
fn under_filters(check: impl FnOnce() -> bool) -> bool {
    let filters = Filters::compile().unwrap();
    let Side::Parent(pid) = fork().unwrap() else {
        let held = rustix::thread::set_no_new_privs(true).is_ok() && filters.apply().is_ok() && check();
        exit_now(i32::from(!held))
    };
    let status =
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap().unwrap().1;
    status.exit_status() == Some(0)
}

#[test]
fn what_the_table_names_fails_with_eperm() {
    assert!(under_filters(|| {
        rustix::mount::mount_change("/", rustix::mount::MountPropagationFlags::PRIVATE) == Err(Errno::PERM)
            && rustix::process::chroot("/") == Err(Errno::PERM)
            && rustix::system::sethostname(b"x") == Err(Errno::PERM)
            && rustix::process::pivot_root("/", "/") == Err(Errno::PERM)
            && crate::sys::schedule::set(crate::sys::schedule::Policy::Normal, 0) == Err(Errno::PERM)
    }));
}

#[test]
fn new_namespaces_are_refused_and_plain_processes_are_not() {
    assert!(under_filters(|| {
        crate::sys::fork::new_mount_namespace() == Err(Errno::PERM)
            && crate::sys::fork::new_pid_namespace_for_children() == Err(Errno::PERM)
            && matches!(fork(), Ok(Side::Parent(_)))
    }));
}

#[test]
fn threads_can_be_made() {
    assert!(under_filters(|| std::thread::spawn(|| 5).join().is_ok_and(|five| five == 5)));
}

#[test]
fn programs_run() {
    assert!(under_filters(|| std::process::Command::new("/bin/true").status().is_ok_and(|s| s.success())));
}

#[test]
fn sockets_have_ordinary_families_only() {
    use rustix::net::{AddressFamily, SocketType, socket};
    assert!(under_filters(|| {
        let open = |family| socket(family, SocketType::DGRAM, None).map(drop);
        open(AddressFamily::INET).is_ok()
            && open(AddressFamily::UNIX).is_ok()
            && socket(AddressFamily::VSOCK, SocketType::STREAM, None).is_err_and(|e| e == Errno::PERM)
            && open(AddressFamily::PACKET) == Err(Errno::PERM)
            && open(AddressFamily::from_raw(38)) == Err(Errno::PERM)
    }));
}

#[test]
fn the_tables_fit_the_kernels_limit() {
    for program in &Filters::compile().unwrap().0 {
        assert!(program.len() < 4096);
    }
}

#[test]
fn clone3_looks_as_if_it_did_not_exist() {
    assert!(under_filters(|| {
        let folder = std::fs::File::open("/").unwrap();
        // Any folder serves: the filter answers before the kernel looks at it.
        crate::sys::fork::fork_into(Some(std::os::fd::AsFd::as_fd(&folder))) == Err(Errno::NOSYS)
    }));
}
