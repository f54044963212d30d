//! What every operation needs of the machine: descriptors to watch, walls to put user code behind, places for files.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, inotify, openat};

use crate::cgroup::{Cgroup, Cgroups, Graveyard};
use crate::error::{During, Result};
use crate::exec::folder::{self, Owner};
use crate::io::SCRATCH;
use crate::poller::{Poller, Token};
use crate::spawn::{HOME, Walls};

/// Folder of the drivers' folders, as user code sees it.
const DRIVER_FOLDERS: &str = "/run/hayfork";
/// Folder of what outlives drivers, as user code sees it.
const STATE_FOLDERS: &str = "/run/state";

/// A folder that both the agent and user code know, each by its own name.
#[derive(Debug)]
pub struct Place {
    /// The agent's handle.
    pub fd: OwnedFd,
    /// The path inside the user's root.
    pub path: String,
}

/// The machine, as operations see it.
#[derive(Debug)]
pub struct World {
    /// Watches descriptors.
    pub poller: Poller,
    /// Namespaces and filter; `None` only in tests.
    pub walls: Option<Walls>,
    /// Limits; `None` only in tests.
    pub cgroups: Option<Cgroups>,
    /// Groups that wait for their last process.
    pub graveyard: Graveyard,
    /// Where drivers' folders are made.
    pub drivers: Place,
    /// Where drivers keep what outlives them.
    pub states: Place,
    /// The user's home, as user code sees it.
    pub home: String,
    /// Who the drivers' files belong to.
    pub owner: Owner,
    /// Tells when a driver opens its standard input.
    pub opened: OwnedFd,
    /// An execution has begun in this turn of the loop.
    pub begun: bool,
    /// The buffer that all reading goes through; taken and put back by whoever reads.
    pub scratch: Vec<u8>,
    next: u32,
}

impl World {
    /// The world of a guest.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn guest(poller: Poller, walls: Walls, cgroups: Cgroups) -> Result<Self> {
        let place = |path: &str| -> Result<Place> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = openat(&walls.root.root, path.trim_start_matches('/'), flags, Mode::empty())
                .during_with(|| format!("open {path} of the user's root"))?;
            Ok(Place { fd, path: path.to_owned() })
        };
        let (drivers, states) = (place(DRIVER_FOLDERS)?, place(STATE_FOLDERS)?);
        Self::new(poller, Some(walls), Some(cgroups), drivers, states, HOME.to_owned(), folder::user())
    }

    /// A world without walls and limits, for tests on a development machine: everything runs with the caller's rights.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn without_walls(poller: Poller, base: &std::path::Path) -> Result<Self> {
        let place = |name: &str| -> Result<Place> {
            let path = base.join(name);
            std::fs::create_dir_all(&path).during("make a test folder")?;
            let fd = std::fs::File::open(&path).during("open a test folder")?.into();
            Ok(Place { fd, path: path.to_string_lossy().into_owned() })
        };
        let (drivers, states, home) = (place("drivers")?, place("states")?, place("home")?);
        Self::new(poller, None, None, drivers, states, home.path, None)
    }

    fn new(
        poller: Poller,
        walls: Option<Walls>,
        cgroups: Option<Cgroups>,
        drivers: Place,
        states: Place,
        home: String,
        owner: Owner,
    ) -> Result<Self> {
        let opened = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .during("make an inotify instance")?;
        poller.add(&opened, Token::Opened)?;
        Ok(Self {
            poller,
            walls,
            cgroups,
            graveyard: Graveyard::default(),
            drivers,
            states,
            home,
            owner,
            opened,
            begun: false,
            scratch: vec![0; SCRATCH],
            next: 0,
        })
    }

    /// A number that was not given out before.
    pub fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// A cgroup below `user`, where there are cgroups.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn cgroup(&self, name: String) -> Result<Option<Cgroup>> {
        self.cgroups.as_ref().map(|cgroups| cgroups.create(name)).transpose()
    }

    /// Removes the cgroups that are empty now.
    pub fn sweep(&mut self) {
        if let Some(cgroups) = &self.cgroups {
            self.graveyard.sweep(cgroups);
        }
    }
}

/// Runs `work` with the shared buffer, which `work` may not use otherwise.
pub fn with_scratch<R>(world: &mut World, work: impl FnOnce(&mut World, &mut [u8]) -> R) -> R {
    let mut scratch = std::mem::take(&mut world.scratch);
    let result = work(world, &mut scratch);
    world.scratch = scratch;
    result
}
