//! `cargo xtask`: the build, image, test and bench commands of hayfork.
//!
//! Each command is a module of [`commands`] with its options and a `run` function; this file only
//! names them. What they share:
//! - [`store`]: the cache of everything that is built, keyed by the content of its inputs;
//! - [`kernel`], [`initramfs`], [`image`]: the parts of an image set; [`set`] puts them together;
//! - [`rig`]: the machine with an ordinary KVM that some tests run in;
//! - [`packages`]: the system packages that building needs;
//! - [`progress`] and [`process`]: progress bars, and programs run with their errors kept.

mod cargo;
mod commands;
mod context;
mod host_drivers;
mod image;
mod initramfs;
mod kernel;
mod packages;
mod process;
mod progress;
mod python;
mod rig;
mod room;
mod set;
mod store;

use std::process::ExitCode;

use clap::Parser;

/// Build, image, test and bench commands of hayfork.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
