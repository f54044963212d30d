//! Where an execution takes place: its folder with FIFOs, and the agent's ends of them, watched.
//!
//! It is made ahead, while the context is idle: who hands in code waits for none of it, and a snapshot of an idle guest has it
//! already. A place that was used and that nobody uses any more is used again ([`super::leftovers`]).

use super::driver::Driver;
use super::folder::{ExecutionFolder, Folder};
use crate::error::Result;
use crate::io::{Got, Source};
use crate::poller::{Part, Token};
use crate::world::World;

/// See the module.
#[derive(Debug)]
pub struct Place {
    /// The execution's number, and its folder's name.
    pub id: u64,
    /// Standard output.
    pub out: Source,
    /// Standard error.
    pub err: Source,
    /// Structured results.
    pub results: Source,
    // Last, so that the FIFOs are closed when it is removed.
    /// The folder.
    pub folder: Folder,
}

impl Place {
    /// Makes one for that driver.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn make(world: &World, driver: &Driver, context: u32, id: u64) -> Result<Self> {
        let ExecutionFolder { out, err, results, folder } = driver.folder.execution(id)?;
        let out_watch = world.poller.watch(&out, Token::Context(context, Part::Stdout))?;
        let err_watch = world.poller.watch(&err, Token::Context(context, Part::Stderr))?;
        world.poller.add(&results, Token::Context(context, Part::Results))?;
        let (out, err) = (Source::paced(out, out_watch), Source::paced(err, err_watch));
        Ok(Self { id, out, err, results: Source::new(results), folder }.fresh())
    }

    /// Nobody has opened its pipes for writing: an event tells of the first bytes.
    fn fresh(mut self) -> Self {
        for source in [&mut self.out, &mut self.err, &mut self.results] {
            source.expect();
            source.rest();
        }
        self
    }

    /// The same as the place of another execution, whose output pipes nobody writes to any more. `None` if somebody writes to the
    /// third one, or if the kernel refuses; the next execution says why, if it concerns that too. Also where there was a standard
    /// input: that folder is watched for who opens one, and the agent itself would be the first.
    pub fn renewed(mut self, id: u64) -> Option<Self> {
        if self.folder.has("in") {
            return None;
        }
        // The FIFOs are the user's own: what code has done to them must not be met by the next one.
        if ![&self.out, &self.err, &self.results].into_iter().all(|pipe| self.folder.is_as_made(pipe.fd())) {
            return None;
        }
        self.results.wake();
        if self.results.read(&mut [0]) != Got::End {
            return None;
        }
        self.folder.rename(id.to_string()).ok()?;
        self.id = id;
        Some(self.fresh())
    }
}
