//! Builds the guest kernel: `cargo run --example build -- FLAVOUR OUT_DIR [SOURCE_TREE]`.

use std::env;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hayfork_guest_kernel::{Builder, Error, Flavour, Manifest, Source, inputs_key};

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let flavour = arguments.next().and_then(|name| name.to_str()?.parse::<Flavour>().ok());
    let (Some(flavour), Some(out)) = (flavour, arguments.next()) else {
        eprintln!("usage: build plain|pvm OUT_DIR [SOURCE_TREE]");
        return ExitCode::from(2);
    };
    match run(flavour, &out, arguments.next().as_deref()) {
        Ok(manifest) => {
            println!(
                "\n{} ({flavour}, {} bytes, {})",
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

fn run(flavour: Flavour, out: &Path, tree: Option<&Path>) -> Result<Manifest, Error> {
    let source = tree.map_or_else(Source::newest_package, Source::tree)?;
    println!("{} {}", inputs_key(flavour, &source.identity()), source.identity().version);
    Builder::new(flavour).build(&source, out, &mut |progress| {
        print!("\r{:3} % {}: {:<60.60}", progress.percent(), progress.step, progress.line.unwrap_or(""));
        let _ = io::stdout().flush();
    })
}
