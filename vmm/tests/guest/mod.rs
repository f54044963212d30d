//! A small Linux guest for tests of anything that runs machines, and a client for it. Part of test programs in several
//! packages, which include this file by its path.
//!
//! The guest's kernel is that of an image set, its only program [`init.rs`](../init.rs), compiled by the tests.
#![allow(dead_code, clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use hayfork_vmm::backend::{KernelFlavour, Machine, MachineSpec};

/// How long a guest may take to come up: a second on an idle machine, and tests run on loaded ones.
pub(crate) const BOOT_TIME: Duration = Duration::from_secs(60);

/// The kernel of the image set that `HAYFORK_IMAGES_DIR` names.
pub(crate) fn kernel(flavour: KernelFlavour) -> PathBuf {
    let (name, how) = match flavour {
        KernelFlavour::Pvm => ("vmlinux-pvm", "cargo xtask images --flavour pvm"),
        _ => ("vmlinux", "make images"),
    };
    let folder = std::env::var_os("HAYFORK_IMAGES_DIR").unwrap_or_else(|| {
        panic!("set HAYFORK_IMAGES_DIR to a folder with a {name} in it ({how} builds one)")
    });
    let kernel = Path::new(&folder).join(name);
    assert!(kernel.is_file(), "there is no {} ({how} builds one)", kernel.display());
    kernel
}

/// An initramfs with the program of `init.rs` as its /init; compiled at the first use.
pub(crate) fn initramfs() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vmm/tests/guest/init.rs");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let finished = folder.join("guest.cpio");
    let modified = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    if modified(&finished) > modified(&source) {
        return finished;
    }
    // Aside and renamed, since tests run at the same time.
    let own = |kind: &str| folder.join(format!("guest-{}.{kind}", std::process::id()));
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiled = Command::new(rustc)
        .args(["--edition=2024", "-Copt-level=1", "-Cpanic=abort", "-Cstrip=symbols", "--crate-name=guest"])
        .args(["--target", &target, "-o"])
        .args([&own("bin"), &source])
        .status()
        .expect("rustc must be there, since it has compiled this test");
    assert!(
        compiled.success(),
        "the guest does not compile; is the target installed? (rustup target add {target})"
    );
    let program = fs::read(own("bin")).unwrap();
    fs::write(own("cpio"), cpio(&[("init", &program)])).unwrap();
    fs::rename(own("cpio"), &finished).unwrap();
    fs::remove_file(own("bin")).unwrap();
    finished
}

/// An archive as the kernel takes it (Documentation/driver-api/early-userspace/buffer-format.rst, "newc").
fn cpio(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut add = |name: &str, mode: u32, content: &[u8]| {
        let (length, name_length) = (content.len(), name.len() + 1);
        archive.extend_from_slice(
            format!("070701{:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{length:08x}{:08x}{:08x}{:08x}{:08x}{name_length:08x}{:08x}",
                0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
            .as_bytes(),
        );
        archive.extend_from_slice(name.as_bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(4), 0);
    };
    for (name, content) in files {
        add(name, 0o100_755, content);
    }
    add("TRAILER!!!", 0, &[]);
    archive
}

/// A machine that does `test`; see `init.rs`.
pub(crate) fn spec(test: &str, flavour: KernelFlavour) -> MachineSpec {
    let mut spec = MachineSpec::new(kernel(flavour), initramfs());
    spec.extra_command_line = format!("test={test}");
    spec.memory_mib = 128;
    spec
}

/// The host's end of a guest that serves.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Takes the machine's channel and waits until the guest answers. A guest that was restored may have been in the middle of
    /// something: it may take what it is told first for the rest of that, and may have an answer to give to somebody else.
    pub(crate) fn connect(machine: &mut dyn Machine) -> Self {
        let stream = machine.take_channel().expect("the channel was taken").into_unix();
        stream.set_read_timeout(Some(BOOT_TIME)).unwrap();
        let mut client = Self { stream: BufReader::new(stream) };
        let start = Instant::now();
        let token = format!("up-{}-{:?}", std::process::id(), start).replace(' ', "");
        client.stream.get_mut().write_all(format!("\nping {token}\n").as_bytes()).unwrap();
        let expected = format!("ok {}\n{token}", token.len());
        if let Err(error) = client.skip_to(expected.as_bytes()) {
            panic!("{error}: {:?}", machine.boot_failure(start.elapsed()));
        }
        client
    }

    /// Reads until `end` has come, and nothing behind it.
    fn skip_to(&mut self, end: &[u8]) -> std::io::Result<()> {
        let mut last = Vec::new();
        loop {
            let there = match self.stream.fill_buf() {
                Ok(there) => there,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if there.is_empty() {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let old = last.len();
            last.extend_from_slice(there);
            let found = last.windows(end.len()).position(|window| window == end);
            let taken = found.map_or(last.len(), |at| at + end.len()) - old;
            self.stream.consume(taken);
            if found.is_some() {
                return Ok(());
            }
            last.drain(..last.len().saturating_sub(end.len()));
        }
    }

    /// One request and its answer; `Err` with the guest's error.
    pub(crate) fn ask(&mut self, request: &str) -> Result<Vec<u8>, String> {
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes()).unwrap();
        self.try_answer().unwrap()
    }

    /// Only a request.
    pub(crate) fn begin(&mut self, request: &str) {
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes()).unwrap();
    }

    /// The answer as text.
    pub(crate) fn text(&mut self, request: &str) -> String {
        String::from_utf8(self.ask(request).unwrap()).unwrap()
    }

    /// Sends bytes behind a request.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> String {
        let mut writer = self.stream.get_ref().try_clone().unwrap();
        writer.write_all(format!("put {}\n", bytes.len()).as_bytes()).unwrap();
        writer.write_all(bytes).unwrap();
        String::from_utf8(self.try_answer().unwrap().unwrap()).unwrap()
    }

    /// Lets the guest send that many bytes, and drops them.
    pub(crate) fn drain_from_guest(&mut self, bytes: usize) {
        self.stream.get_mut().write_all(format!("source {bytes}\n").as_bytes()).unwrap();
        let mut buffer = vec![0; 1 << 17];
        let mut left = bytes;
        while left > 0 {
            let most = buffer.len().min(left);
            left -= self.stream.read(&mut buffer[..most]).unwrap();
        }
        self.try_answer().unwrap().unwrap();
    }

    /// Sends the guest that many bytes, which it drops.
    pub(crate) fn pour_into_guest(&mut self, bytes: usize) {
        let stream = self.stream.get_mut();
        stream.write_all(format!("sink {bytes}\n").as_bytes()).unwrap();
        let piece = vec![0xa5; 1 << 16];
        let mut left = bytes;
        while left > 0 {
            left -= stream.write(&piece[..piece.len().min(left)]).unwrap();
        }
        self.try_answer().unwrap().unwrap();
    }

    fn try_answer(&mut self) -> std::io::Result<Result<Vec<u8>, String>> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (mark, length) = line.trim().split_once(' ').unwrap();
        let mut bytes = vec![0; length.parse().unwrap()];
        self.stream.read_exact(&mut bytes)?;
        Ok(if mark == "ok" { Ok(bytes) } else { Err(String::from_utf8(bytes).unwrap()) })
    }
}

/// Whether a process is there; one that has ended and was not collected is not.
pub(crate) fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !matches!(stat.rsplit(')').next().unwrap().trim().chars().next(), Some('Z' | 'X')))
}

/// Waits until `done`, and returns how long that took.
pub(crate) fn wait_until(limit: Duration, what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "{what} did not happen within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}
