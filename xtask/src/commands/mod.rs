//! The commands, one module each.

pub(crate) mod bench;
pub(crate) mod bench_rig;
pub(crate) mod clean;
pub(crate) mod fuzz;
pub(crate) mod images;
pub(crate) mod lint;
pub(crate) mod regrtest;
pub(crate) mod run;
pub(crate) mod runner;
pub(crate) mod soak;
pub(crate) mod tally;
pub(crate) mod test;

use anyhow::Result;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Set everything up and run a program in a virtual machine.
    Run(run::Options),
    /// Set everything up and run all tests.
    Test(test::Options),
    /// Measure.
    Bench(bench::Options),
    /// Measure the monitor in instructions, in the nested rig.
    BenchRig(bench_rig::Options),
    /// Boot many machines in a row.
    Soak(soak::Options),
    /// Run CPython's own tests inside a sandbox.
    Regrtest(regrtest::Options),
    /// Check formatting, lints and types.
    Lint(lint::Options),
    /// Run each fuzz target for some seconds.
    Fuzz(fuzz::Options),
    /// Build the guest kernel, the initramfs and the root images into the cache.
    Images(images::Options),
    /// Remove what `images` has built.
    Clean(clean::Options),
}

impl Command {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Run(options) => run::run(&options),
            Self::Test(options) => test::run(&options),
            Self::Bench(options) => bench::run(&options),
            Self::BenchRig(options) => bench_rig::run(&options),
            Self::Soak(options) => soak::run(&options),
            Self::Regrtest(options) => regrtest::run(&options),
            Self::Lint(options) => lint::run(&options),
            Self::Fuzz(options) => fuzz::run(&options),
            Self::Images(options) => images::run(&options).map(|_| ()),
            Self::Clean(options) => clean::run(&options),
        }
    }
}
