//! Builds the guest kernel: `cargo run --example build -- OUT_DIR [SOURCE_TREE]`.

use std::env;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hayfork_guest_kernel::{Error, Flavour, Manifest, Source, build, inputs_key};

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let Some(out) = arguments.next() else {
        eprintln!("usage: build OUT_DIR [SOURCE_TREE]");
        return ExitCode::from(2);
    };
    match run(&out, arguments.next().as_deref()) {
        Ok(manifest) => {
            println!(
                "\n{} ({} bytes, {})",
                out.join(&manifest.file).display(),
                manifest.bytes,
                manifest.source_line()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("\n{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(out: &Path, tree: Option<&Path>) -> Result<Manifest, Error> {
    let source = tree.map_or_else(Source::newest_package, Source::tree)?;
    println!("{} {}", inputs_key(Flavour::Plain, &source.identity()), source.identity().version);
    build(&source, out, &mut |progress| {
        print!("\r{:3} % {}: {:<60.60}", progress.percent(), progress.step, progress.line.unwrap_or(""));
        let _ = io::stdout().flush();
    })
}
