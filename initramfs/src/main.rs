//! `/init` of a hayfork guest.
//!
//! The order: the agent's own mounts, settings, limits, the user's root, the carrier, and then the loop in
//! [`hayfork_agent::agent`] until the host ends the guest. Every failure on the way is one line on the console and a
//! restart, which ends the virtual machine; nothing hangs.

use std::process::ExitCode;

use hayfork_agent::agent::{Agent, End};
use hayfork_agent::boot::budget::Budget;
use hayfork_agent::boot::{mounts, sysctl, user_root::UserRoot};
use hayfork_agent::carrier::Carrier;
use hayfork_agent::cgroup::Cgroups;
use hayfork_agent::cmdline::Settings;
use hayfork_agent::poller::Poller;
use hayfork_agent::spawn::{Walls, filter::Filters};
use hayfork_agent::world::World;
use hayfork_agent::{error, info, languages, log, panic, sys, warning};

/// musl's allocator gives each large block back to the kernel when it is freed, and every page of the next one is a fault again:
/// most of the time of a transfer, whose frames are such blocks. This one keeps up to 2 MiB.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Priority of the agent over user code, as a nice value.
const NICE: i32 = -10;

fn main() -> ExitCode {
    if rustix::process::getpid().as_raw_nonzero().get() != 1 {
        eprintln!("hayfork-agent is the init process of a hayfork guest; it does nothing elsewhere");
        return ExitCode::FAILURE;
    }
    panic::install();
    match boot() {
        Ok(End::Shutdown | End::Abandoned | End::Signal) => {}
        Err(message) => error!("{message}"),
    }
    panic::restart()
}

fn boot() -> Result<End, String> {
    let text = |error: hayfork_agent::error::OsError| error.to_string();
    mounts::leave_rootfs().map_err(text)?;
    mounts::kernel_file_systems().map_err(text)?;
    log::use_kernel_log();
    rustix::process::umask(rustix::fs::Mode::empty());
    let cmdline =
        std::fs::read_to_string("/proc/cmdline").map_err(|error| format!("read /proc/cmdline: {error}"))?;
    let settings = Settings::parse(&cmdline).map_err(|error| error.to_string())?;
    for refused in sysctl::apply() {
        warning!("the kernel refused the setting {refused}");
    }
    protect_agent();
    if let Err(errno) = sys::network::interface_up("lo") {
        warning!("bring up lo: {errno}");
    }
    info!("settings are applied");
    let budget = Budget::of_this_machine().map_err(text)?;
    let cgroups = Cgroups::make(&budget).map_err(text)?;
    info!("limits are set");
    let root = UserRoot::make(&settings.root, &budget).map_err(text)?;
    let reaper = root.reaper;
    {
        use std::os::fd::AsFd;
        languages::discover("/drivers", root.root.as_fd());
    }
    info!("the user's root is ready");
    let filters = Filters::compile().map_err(|error| error.to_string())?;
    let poller = Poller::new().map_err(text)?;
    let carrier = Carrier::open(&settings.carrier, &poller).map_err(text)?;
    info!("the carrier is open");
    let world = World::guest(poller, Walls { root, filters }, cgroups).map_err(text)?;
    let mut agent = Agent::new(world, carrier, settings.linger, vec![reaper]).map_err(text)?;
    info!("waiting for a host");
    agent.run().map_err(text)
}

/// The agent must answer whatever user code does: first at the processor, never a victim of want of memory. Children give
/// this up before they run user code.
fn protect_agent() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        warning!("protect the agent from out-of-memory kills: {error}");
    }
    // A driver's execution wakes the agent a dozen times: lines, output, the ends of pipes. All of that together is one turn of the
    // agent's loop when the driver sleeps or its time is up; each by itself would be two switches of address spaces.
    if let Err(errno) = sys::schedule::set(sys::schedule::Policy::Batch, NICE) {
        warning!("raise the agent's priority: {errno}");
    }
    if let Err(errno) = rustix::system::sethostname(b"sandbox") {
        warning!("set the host name: {errno}");
    }
    let files = rustix::process::Rlimit { current: Some(4096), maximum: Some(4096) };
    if let Err(errno) = rustix::process::setrlimit(rustix::process::Resource::Nofile, files) {
        warning!("raise the agent's limit on descriptors: {errno}");
    }
}
