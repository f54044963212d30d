//! The build itself, from a named source to the three files of a kernel.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::num::NonZero;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::command::{clean, run};
use crate::{
    Deviation, Error, FORMAT, Flavour, Identity, Manifest, Patch, Progress, Result, Source, Step, check,
    check_tools, inputs_key, package, parse_config, parse_forbidden, tools, tree,
};

/// Object files that a build of the present fragment compiles; only the progress bar depends on it.
const EXPECTED_OBJECTS: u64 = 870;

/// File names in the output folder.
const VMLINUX: &str = "vmlinux";
const CONFIG: &str = "config";
const MANIFEST: &str = "manifest.json";

/// A build with its options.
#[derive(Debug, Clone)]
pub struct Builder {
    flavour: Flavour,
    jobs: usize,
}

impl Builder {
    /// A build of one flavour with as many jobs as there are CPUs.
    pub fn new(flavour: Flavour) -> Self {
        Self { flavour, jobs: thread::available_parallelism().map_or(1, NonZero::get) }
    }

    /// Compiles this many files at a time.
    #[must_use]
    pub fn jobs(mut self, jobs: NonZero<usize>) -> Self {
        self.jobs = jobs.get();
        self
    }

    /// Builds into `out_dir`, which is made if need be: `vmlinux`, `config` and `manifest.json`.
    ///
    /// The work (about 1 GB) is done in a folder of its own inside `out_dir`, removed at the end whatever the outcome; files of
    /// an earlier build are replaced. Takes some 3 minutes of two fast cores. `progress` is called on this thread.
    ///
    /// # Errors
    /// See [`Error`]; nothing is left in `out_dir` but the files of an earlier build, if there were any.
    pub fn build(
        &self,
        source: &Source,
        out_dir: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Manifest> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(Error::HostArchitecture(std::env::consts::ARCH));
        }
        check_tools(matches!(source, Source::Package(_)))?;
        fs::create_dir_all(out_dir).map_err(Error::io("create", out_dir))?;
        let work = tempfile::Builder::new()
            .prefix(".build-")
            .tempdir_in(out_dir)
            .map_err(Error::io("create a work folder in", out_dir))?;
        let linux = work.path().join("linux");
        fetch(source, work.path(), &linux, progress)?;

        let identity = source.identity();
        progress(Progress::at(Step::Configure));
        for patch in self.flavour.patches() {
            apply(patch, &linux, &identity.version)?;
        }
        self.configure(&linux, &identity.version)?;
        self.compile(&linux, progress)?;

        progress(Progress::at(Step::Finish));
        let manifest = self.finish(&identity, &linux, out_dir)?;
        progress(Progress { step: Step::Finish, done: 1, total: 1, line: None });
        Ok(manifest)
    }

    /// allnoconfig with the fragment as its given answers, then the check.
    ///
    /// `KCONFIG_ALLCONFIG` answers no to what the fragment does not name even where naming something else makes it visible;
    /// merging and `olddefconfig` would take Kconfig's defaults there, which are made for distributions.
    fn configure(&self, linux: &Path, version: &str) -> Result<()> {
        let fragment =
            self.flavour.settings().map_err(|source| Error::Fragment { file: "fragment", source })?;
        let forbidden = parse_forbidden(self.flavour.forbidden())
            .map_err(|source| Error::Fragment { file: "forbidden list", source })?;
        let answers = linux.join(".hayfork.config");
        let lines: String = fragment.iter().map(|(symbol, setting)| setting.line(symbol)).collect();
        fs::write(&answers, lines).map_err(Error::io("write", &answers))?;
        let mut make = make(linux);
        make.env("KCONFIG_ALLCONFIG", &answers).arg("allnoconfig");
        run(Step::Configure, make, |_| {})?;

        let config = linux.join(".config");
        let text = fs::read_to_string(&config).map_err(Error::io("read", &config))?;
        let list: Vec<Deviation> = check(&fragment, &forbidden, &parse_config(&text));
        if list.is_empty() { Ok(()) } else { Err(Error::Configuration { version: version.to_owned(), list }) }
    }

    fn compile(&self, linux: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<()> {
        let mut make = make(linux);
        make.arg(format!("-j{}", self.jobs)).arg("vmlinux");
        let mut done = 0;
        run(Step::Compile, make, |line| {
            // Kbuild's short form: two spaces, what is done, the file. HOSTCC and the like are not the kernel's objects.
            let words = line.strip_prefix("  ").unwrap_or_default();
            if words.starts_with("CC ") || words.starts_with("AS ") {
                done += 1;
            }
            progress(Progress {
                step: Step::Compile,
                done,
                total: EXPECTED_OBJECTS.max(done),
                line: Some(words.trim()),
            });
        })
    }

    fn finish(&self, identity: &Identity, linux: &Path, out_dir: &Path) -> Result<Manifest> {
        // Symbols for backtraces are in the kernel's own tables; those of the ELF file would only be read by QEMU, and sorted,
        // at each start.
        let stripped = linux.join("vmlinux.stripped");
        let mut strip = clean("strip");
        strip.arg("--strip-all").arg("-o").arg(&stripped).arg(linux.join(VMLINUX));
        run(Step::Finish, strip, |_| {})?;

        let config_path = linux.join(".config");
        let config = fs::read(&config_path).map_err(Error::io("read", &config_path))?;
        let mut hasher = blake3::Hasher::new();
        let mut kernel = File::open(&stripped).map_err(Error::io("open", &stripped))?;
        hasher.update_reader(&mut kernel).map_err(Error::io("read", &stripped))?;
        let manifest = Manifest {
            format: FORMAT,
            flavour: self.flavour,
            inputs_key: inputs_key(self.flavour, identity),
            source: identity.clone(),
            patches: self.flavour.patches().map(|patch| patch.name.to_owned()).collect(),
            config_blake3: blake3::hash(&config).to_hex().to_string(),
            compiler: tools::compiler()?,
            file: VMLINUX.to_owned(),
            blake3: hasher.finalize().to_hex().to_string(),
            bytes: hasher.count(),
        };
        let out = out_dir.join(MANIFEST);
        let mut text = serde_json::to_string_pretty(&manifest)
            .map_err(|error| Error::io("write", &out)(io::Error::other(error)))?;
        text.push('\n');

        let out_config = out_dir.join(CONFIG);
        fs::write(&out_config, config).map_err(Error::io("write", &out_config))?;
        let out_kernel = out_dir.join(VMLINUX);
        fs::rename(&stripped, &out_kernel).map_err(Error::io("write", &out_kernel))?;
        // Last: who sees a manifest sees a complete kernel.
        fs::write(&out, text).map_err(Error::io("write", &out))?;
        Ok(manifest)
    }
}

/// Puts the source into `linux`.
fn fetch(source: &Source, work: &Path, linux: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<()> {
    match source {
        Source::Package(candidate) => {
            let folder = work.join("package");
            fs::create_dir(&folder).map_err(Error::io("create", &folder))?;
            progress(Progress { step: Step::Download, done: 0, total: candidate.bytes, line: None });
            let file = package::download(candidate, &folder, progress)?;
            progress(Progress::at(Step::Unpack));
            tree::unpack(&file, linux, progress)?;
            fs::remove_dir_all(&folder).map_err(Error::io("remove", &folder))
        }
        Source::Tree { path, identity } => {
            progress(Progress::at(Step::Unpack));
            if tree::copy(path, linux, progress)? == identity.digest {
                return Ok(());
            }
            Err(Error::TreeChanged { path: path.clone() })
        }
    }
}

/// A make in the tree, for x86_64, with all that the kernel would embed of this machine and moment fixed.
fn make(linux: &Path) -> Command {
    let mut make = clean("make");
    make.current_dir(linux)
        .env("ARCH", "x86_64")
        .env("KBUILD_BUILD_TIMESTAMP", "Thu Jan  1 00:00:00 UTC 1970")
        .env("KBUILD_BUILD_USER", "hayfork")
        .env("KBUILD_BUILD_HOST", "hayfork")
        .env("KBUILD_BUILD_VERSION", "1")
        // Set and empty: nothing of a surrounding git repository is appended to the version.
        .env("LOCALVERSION", "");
    make
}

/// Applies one patch. Lines may have moved; their surroundings must be as the patch knows them.
fn apply(patch: &Patch, linux: &Path, version: &str) -> Result<()> {
    let failed = |error| Error::io("run", Path::new("patch"))(error);
    let mut child = clean("patch")
        .args(["-p1", "--batch", "--forward", "--fuzz=0", "--no-backup-if-mismatch"])
        .current_dir(linux)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // A patch program that gave up early has said why; its exit code decides.
        let _ = input.write_all(patch.text.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(Error::Patch {
        name: patch.name,
        version: version.to_owned(),
        output: String::from_utf8_lossy(&said).trim_end().to_owned(),
    })
}
