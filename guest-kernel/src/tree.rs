//! Getting the part of a kernel source tree that an x86 build reads: out of a package, or out of a caller's tree.
//!
//! A whole tree is 1.7 GB in 85,000 files; a quarter of that is enough. Kconfig and Kbuild files are kept everywhere, because
//! each menu and each folder is visited even when nothing in it is on. Sources are left out where the fragment turns on
//! nothing: other architectures, and driver and file system folders named in `LEFT_OUT`. A source that a future option
//! needs and that is left out shows as "No rule to make target" in the build's last lines.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::package::NAME;
use crate::{Error, Progress, Result, Step};

/// Folders of which only Kconfig and Kbuild files are kept.
const LEFT_OUT: &[&str] = &[
    "Documentation",
    "drivers/accel",
    "drivers/bluetooth",
    "drivers/clk",
    "drivers/comedi",
    "drivers/crypto",
    "drivers/gpu",
    "drivers/hid",
    "drivers/hwmon",
    "drivers/i2c",
    "drivers/iio",
    "drivers/infiniband",
    "drivers/input",
    "drivers/media",
    "drivers/mfd",
    "drivers/mmc",
    "drivers/mtd",
    "drivers/net/can",
    "drivers/net/dsa",
    "drivers/net/ethernet",
    "drivers/net/phy",
    "drivers/net/usb",
    "drivers/net/wireless",
    "drivers/phy",
    "drivers/pinctrl",
    "drivers/platform",
    "drivers/regulator",
    "drivers/s390",
    "drivers/scsi",
    "drivers/soc",
    "drivers/spi",
    "drivers/staging",
    "drivers/usb",
    "drivers/video",
    "fs/bcachefs",
    "fs/btrfs",
    "fs/ocfs2",
    "fs/smb",
    "fs/xfs",
    "rust",
    "samples",
    "sound",
    "tools/perf",
    "tools/testing",
];

/// Whether a file or folder, by its path inside the tree, belongs to what a build reads.
fn keep(path: &Path, is_folder: bool) -> bool {
    if path.starts_with(".git") {
        return false;
    }
    if is_folder || !is_left_out(path) {
        return true;
    }
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
        ["Kconfig", "Makefile", "Kbuild"].iter().any(|prefix| name.starts_with(prefix))
            || name.ends_with(".kconfig")
    })
}

/// Whether a file lies in a folder whose sources are not needed. crypto/Kconfig reads every architecture's.
fn is_left_out(path: &Path) -> bool {
    let other_architecture = path
        .strip_prefix("arch")
        .is_ok_and(|below| below.components().count() > 1 && !below.starts_with("x86"));
    other_architecture || LEFT_OUT.iter().any(|folder| path.starts_with(folder))
}

/// `blake3:…` over the kept files of a tree: their paths, kinds, and contents, in order of path.
pub(crate) fn digest(root: &Path) -> Result<String> {
    let mut hasher = TreeHasher::default();
    walk(root, |relative, path, kind| hasher.add(relative, path, kind))?;
    Ok(hasher.finish())
}

/// Copies the kept files of a tree and gives the digest of what was copied, which is that of [`digest`] for the same tree.
pub(crate) fn copy(root: &Path, target: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<String> {
    let mut total = 0;
    walk(root, |_, path, _| {
        total += fs::symlink_metadata(path).map_err(Error::io("read", path))?.len();
        Ok(())
    })?;
    let mut hasher = TreeHasher::default();
    let mut folders = Folders::default();
    let mut meter = Meter::new(total);
    walk(root, |relative, path, kind| {
        let to = target.join(relative);
        folders.make_parent(&to)?;
        if kind == Kind::Link {
            let link = fs::read_link(path).map_err(Error::io("read", path))?;
            std::os::unix::fs::symlink(link, &to).map_err(Error::io("create", &to))?;
        } else {
            meter.done += fs::copy(path, &to).map_err(Error::io("copy", path))?;
        }
        // The copy is hashed, not the original: what is built is what the digest names.
        hasher.add(relative, &to, kind)?;
        meter.report(progress);
        Ok(())
    })?;
    Ok(hasher.finish())
}

/// Unpacks the kept files of a kernel source package.
///
/// The package is an ar archive that holds a tar that holds the source as `.tar.xz`. dpkg-deb and xz read the outer formats;
/// the two tars are read here, in one pass and without a copy on disk.
pub(crate) fn unpack(package: &Path, target: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<()> {
    let mut outer = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Error::io("run", Path::new("dpkg-deb")))?;
    let mut inner = Command::new("xz")
        .args(["--decompress", "--stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Error::io("run", Path::new("xz")))?;
    let (Some(outer_out), Some(mut inner_in), Some(inner_out)) =
        (outer.stdout.take(), inner.stdin.take(), inner.stdout.take())
    else {
        return Err(Error::BadPackage { reason: "dpkg-deb and xz have no pipes".to_owned() });
    };
    let (read, total) = (AtomicU64::new(0), AtomicU64::new(0));
    let (fed, taken) = thread::scope(|scope| {
        let feeder = scope.spawn(|| {
            let outcome = feed(outer_out, &mut inner_in, &read, &total);
            drop(inner_in);
            outcome
        });
        let taken = take(inner_out, target, &mut || {
            let (done, total) = (read.load(Ordering::Relaxed), total.load(Ordering::Relaxed));
            progress(Progress { step: Step::Unpack, done, total: total.max(done), line: None });
        });
        (feeder.join(), taken)
    });
    let statuses = [outer.wait(), inner.wait()];
    // What was written wrongly here comes first; then what stopped the feeder; then the programs' own opinion.
    taken?;
    match fed {
        Ok(Ok(true)) => {}
        Ok(Ok(false)) => {
            return Err(Error::BadPackage { reason: format!("it holds no usr/src/{NAME}.tar.xz") });
        }
        Ok(Err(error)) => return Err(Error::io("read", package)(error)),
        Err(_) => {
            return Err(Error::BadPackage { reason: "the thread that reads it ended early".to_owned() });
        }
    }
    for (status, program) in statuses.into_iter().zip(["dpkg-deb", "xz"]) {
        let status = status.map_err(Error::io("wait for", Path::new(program)))?;
        if !status.success() {
            let reason = format!("{program} ended with {}", crate::command::words(status));
            return Err(Error::BadPackage { reason });
        }
    }
    if !target.join("Makefile").is_file() {
        return Err(Error::BadPackage { reason: "the source in it has no top Makefile".to_owned() });
    }
    Ok(())
}

/// Finds the source's tar in the package's tar and feeds it to xz. False when it is not there.
fn feed(
    from: impl io::Read,
    to: &mut impl io::Write,
    read: &AtomicU64,
    total: &AtomicU64,
) -> io::Result<bool> {
    let wanted = PathBuf::from(format!("usr/src/{NAME}.tar.xz"));
    let mut archive = tar::Archive::new(from);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?;
        if path.strip_prefix(".").unwrap_or(&path) != wanted {
            continue;
        }
        total.store(entry.size(), Ordering::Relaxed);
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let count = entry.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            to.write_all(&buffer[..count])?;
            read.fetch_add(count as u64, Ordering::Relaxed);
        }
        // dpkg-deb must be read to its end, or it dies of a closed pipe and looks like a failure.
        drop(entry);
        io::copy(&mut archive.into_inner(), &mut io::sink())?;
        return Ok(true);
    }
    Ok(false)
}

/// Writes the kept files of the source's tar below `target`.
fn take(from: impl io::Read, target: &Path, report: &mut dyn FnMut()) -> Result<()> {
    let unreadable =
        |error: io::Error| Error::BadPackage { reason: format!("its source archive is damaged: {error}") };
    let mut folders = Folders::default();
    let mut last = Instant::now();
    let mut archive = tar::Archive::new(from);
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        let kind = entry.header().entry_type();
        if !(kind.is_file() || kind.is_symlink()) {
            continue;
        }
        let path = entry.path().map_err(unreadable)?.into_owned();
        // The archive has one folder at its top. Anything but plain names below it is not ours to write.
        let relative: PathBuf = path.components().filter(|part| *part != Component::CurDir).skip(1).collect();
        if !relative.components().all(|part| matches!(part, Component::Normal(_))) || !keep(&relative, false)
        {
            continue;
        }
        let to = target.join(&relative);
        folders.make_parent(&to)?;
        entry.unpack(&to).map_err(Error::io("write", &to))?;
        if last.elapsed() > REPORT_EVERY {
            last = Instant::now();
            report();
        }
    }
    report();
    Ok(())
}

const REPORT_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Link,
}

/// Calls `visit(path inside the tree, path, kind)` for each kept file and symbolic link, in an order that depends on names alone.
fn walk(root: &Path, mut visit: impl FnMut(&Path, &Path, Kind) -> Result<()>) -> Result<()> {
    let inside = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_owned();
    let entries = walkdir::WalkDir::new(root)
        .min_depth(1)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|entry| keep(&inside(entry.path()), entry.file_type().is_dir()));
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("read", root)(error.into()))?;
        let kind = match entry.file_type() {
            kind if kind.is_file() => Kind::File,
            kind if kind.is_symlink() => Kind::Link,
            _ => continue,
        };
        visit(&inside(entry.path()), entry.path(), kind)?;
    }
    Ok(())
}

#[derive(Default)]
struct TreeHasher(blake3::Hasher);

impl TreeHasher {
    fn add(&mut self, relative: &Path, path: &Path, kind: Kind) -> Result<()> {
        let (letter, content) = if kind == Kind::Link {
            let link = fs::read_link(path).map_err(Error::io("read", path))?;
            (b'l', blake3::hash(link.as_os_str().as_encoded_bytes()))
        } else {
            let mut file = File::open(path).map_err(Error::io("open", path))?;
            let mode = file.metadata().map_err(Error::io("read", path))?.permissions().mode();
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(&mut file).map_err(Error::io("read", path))?;
            (if mode & 0o100 == 0 { b'f' } else { b'x' }, hasher.finalize())
        };
        let name = relative.as_os_str().as_encoded_bytes();
        self.0.update(&[letter]);
        self.0.update(&(name.len() as u64).to_le_bytes());
        self.0.update(name);
        self.0.update(content.as_bytes());
        Ok(())
    }

    fn finish(&self) -> String {
        format!("blake3:{}", self.0.finalize().to_hex())
    }
}

/// Makes each folder once.
#[derive(Default)]
struct Folders(HashSet<PathBuf>);

impl Folders {
    fn make_parent(&mut self, path: &Path) -> Result<()> {
        let Some(parent) = path.parent() else { return Ok(()) };
        if !self.0.contains(parent) {
            fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
            self.0.insert(parent.to_owned());
        }
        Ok(())
    }
}

/// Reports bytes, not too often.
struct Meter {
    done: u64,
    total: u64,
    last: Instant,
}

impl Meter {
    fn new(total: u64) -> Self {
        Self { done: 0, total, last: Instant::now() }
    }

    fn report(&mut self, progress: &mut dyn FnMut(Progress<'_>)) {
        if self.last.elapsed() > REPORT_EVERY {
            self.last = Instant::now();
            progress(Progress {
                step: Step::Unpack,
                done: self.done,
                total: self.total.max(self.done),
                line: None,
            });
        }
    }
}

#[cfg(test)]
mod tests;
