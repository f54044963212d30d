//! How far a build is, for a progress bar.

use std::fmt;

/// What a build is doing. In this order; a source tree is not downloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Fetching the source package; counted in bytes.
    Download,
    /// Unpacking the package or copying the tree; counted in bytes read.
    Unpack,
    /// Patching, configuring and checking; not counted.
    Configure,
    /// Compiling; counted in object files.
    Compile,
    /// Stripping, hashing and writing the result; not counted.
    Finish,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Download => "downloading the kernel source",
            Self::Unpack => "unpacking the kernel source",
            Self::Configure => "configuring the kernel",
            Self::Compile => "compiling the kernel",
            Self::Finish => "finishing the kernel",
        })
    }
}

/// One report of progress. Reports come often (about ten a second at most per step, and one for each object file).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// What is being done.
    pub step: Step,
    /// How much of it is done, in the step's own unit.
    pub done: u64,
    /// How much there is, in the same unit; 0 when it is not counted. An estimate for [`Step::Compile`], never less than `done`.
    pub total: u64,
    /// A line of output worth showing, such as the file being compiled.
    pub line: Option<&'a str>,
}

impl Progress<'_> {
    pub(crate) fn at(step: Step) -> Self {
        Self { step, done: 0, total: 0, line: None }
    }

    /// How much of the whole build is done, 0 to 100. Weights are those of a two-core machine with a fast network.
    pub fn percent(&self) -> u8 {
        let (from, to) = match self.step {
            Step::Download => (0, 2),
            Step::Unpack => (2, 8),
            Step::Configure => (8, 10),
            Step::Compile => (10, 99),
            Step::Finish => (99, 100),
        };
        if self.total == 0 {
            return from;
        }
        let part = u64::from(to - from) * self.done.min(self.total) / self.total;
        from + u8::try_from(part).unwrap_or(to - from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_grows_through_the_steps_and_stays_in_range() {
        let mut last = 0;
        for step in [Step::Download, Step::Unpack, Step::Configure, Step::Compile, Step::Finish] {
            for done in 0..=10 {
                let now = Progress { step, done, total: 10, line: None }.percent();
                assert!(now >= last && now <= 100, "{step:?} {done}: {last} -> {now}");
                last = now;
            }
        }
        assert_eq!(last, 100);
    }

    #[test]
    fn more_done_than_expected_is_still_in_range() {
        assert_eq!(Progress { step: Step::Compile, done: u64::MAX, total: 1, line: None }.percent(), 99);
        assert_eq!(Progress::at(Step::Compile).percent(), 10);
    }
}
