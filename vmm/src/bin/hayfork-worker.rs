//! The program of worker processes; see `hayfork_vmm::worker`.

use std::process::ExitCode;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> ExitCode {
    hayfork_vmm::worker::main()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() -> ExitCode {
    eprintln!("hayfork-worker: there is no monitor for this kind of host");
    ExitCode::FAILURE
}
