//! What executions leave behind in a context: output that belongs to none of them, and the place of the last one.
//!
//! ```text
//!                      nobody writes to its pipes any more
//!  execution ──► last place ─────────────────────────────────► place of the next execution
//!                    │ the next execution comes first, or the driver has died
//!                    └──► pipes: read in the background until nobody writes, or until there are too many; folder: gone
//! ```
//! A place costs two dozen system calls to make and to remove, and three to be used again. Its pipes end soon: the driver
//! puts others in their place at the end of each execution, and only children that outlive theirs hold on to them.

use std::collections::VecDeque;
use std::time::Instant;

use super::idle::IdleOutput;
use super::place::Place;
use crate::io::{Got, Source};
use crate::poller::Part;

/// Output pipes of children that outlived their execution, per context. The oldest is closed for a new one.
const MAX_BACKGROUND: usize = 32;

/// See the module.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// What was printed while nothing ran, or by children of executions that are over.
    pub idle: IdleOutput,
    background: VecDeque<(Source, bool)>,
    last: Option<Last>,
}

/// The place of the last execution, and whether its output pipes have ended.
#[derive(Debug)]
struct Last {
    place: Place,
    ended: [bool; 2],
}

impl Last {
    fn pipes(&mut self) -> impl Iterator<Item = (&mut Source, bool, &mut bool)> {
        let Place { out, err, .. } = &mut self.place;
        [out, err]
            .into_iter()
            .zip([false, true])
            .zip(&mut self.ended)
            .map(|((source, stderr), ended)| (source, stderr, ended))
    }
}

impl Leftovers {
    /// An execution is over, and its driver goes on.
    pub fn take(&mut self, place: Place) {
        self.part_with_last();
        let mut last = Last { place, ended: [false; 2] };
        last.pipes().for_each(|(source, ..)| source.wake());
        self.last = Some(last);
    }

    /// Whether a place is there that may be used again.
    pub fn has_last(&self) -> bool {
        self.last.is_some()
    }

    /// The last place as the one with that number, if nobody uses it any more. One that cannot be used again is gone.
    pub fn reuse(&mut self, id: impl FnOnce() -> u64) -> Option<Place> {
        let last = self.last.take_if(|last| last.ended == [true; 2])?;
        last.place.renewed(id())
    }

    /// The last place is not used again.
    pub fn part_with_last(&mut self) {
        let Some(Last { place, .. }) = self.last.take() else { return };
        self.background.extend([(place.out, false), (place.err, true)]);
        while self.background.len() > MAX_BACKGROUND {
            self.background.pop_front();
        }
    }

    /// An event came for an output pipe. Those of earlier executions are registered as the running one's.
    pub fn wake(&mut self, part: Part) {
        if !matches!(part, Part::Stdout | Part::Stderr) {
            return;
        }
        let last = self.last.iter_mut().flat_map(Last::pipes).map(|(source, ..)| source);
        self.background.iter_mut().map(|(source, _)| source).chain(last).for_each(Source::wake);
    }

    /// When [`Leftovers::collect`] is due without an event.
    pub fn deadline(&self) -> Option<Instant> {
        let last = self.last.iter().flat_map(|last| [&last.place.out, &last.place.err]);
        self.background.iter().map(|(source, _)| source).chain(last).filter_map(Source::deadline).min()
    }

    /// Reads what no execution claims: of the pipes that the driver has while it is idle, and of all others. True if something
    /// came.
    pub fn collect(&mut self, of_driver: Option<&mut [Source; 2]>, buffer: &mut [u8]) -> bool {
        let Self { idle, background, last } = self;
        let mut came = false;
        let mut read = |source: &mut Source, stderr: bool| {
            let got = source.read(buffer);
            if let Got::Bytes(n) = got {
                idle.push(stderr, &buffer[..n]);
                came = true;
            }
            got
        };
        for (source, stderr) in of_driver.into_iter().flatten().zip([false, true]) {
            read(source, stderr);
        }
        background.retain_mut(|(source, stderr)| read(source, *stderr) != Got::End);
        for (source, stderr, ended) in last.iter_mut().flat_map(Last::pipes) {
            // The end is told of once.
            *ended |= read(source, stderr) == Got::End;
        }
        came
    }
}
