//! Running source text in persistent contexts, through the language drivers.
//!
//! * [`context`]: one driver process, its executions in order, and its life.
//! * [`driver`]: starting that process and its folder of FIFOs.
//! * [`execution`]: one execution from its control line to its last byte.
//! * [`folder`]: the files and FIFOs of one execution.
//! * [`place`]: those of the next one, made ahead.
//! * [`events`]: the driver's lines, parsed with suspicion.
//! * [`results`]: structured results, parsed with suspicion.
//! * [`output`]: output streams and their limits; also used by commands.
//! * [`stop`]: the ladder from Ctrl-C to the end of everything; also used by commands.
//! * [`idle`]: output that no execution claims.

pub mod context;
pub mod driver;
pub mod events;
pub mod execution;
pub mod folder;
pub mod idle;
pub mod leftovers;
pub mod output;
mod place;
pub mod results;
pub mod stop;
