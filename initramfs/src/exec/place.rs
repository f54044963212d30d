//! Where an execution takes place: its folder with FIFOs, and the agent's ends of them, watched.
//!
//! It is made ahead, while the context is idle: who hands in code waits for none of it, and a snapshot of an idle guest has it
//! already.

use super::driver::Driver;
use super::folder::{ExecutionFolder, Folder};
use crate::error::Result;
use crate::io::Source;
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
        let mut sources =
            [Source::paced(out, out_watch), Source::paced(err, err_watch), Source::new(results)];
        // Nobody has opened them for writing; an event tells of the first bytes.
        sources.iter_mut().for_each(Source::rest);
        let [out, err, results] = sources;
        Ok(Self { id, out, err, results, folder })
    }
}
