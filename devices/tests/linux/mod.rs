//! A Linux guest under QEMU with our device, and one command channel to it.

mod backend;
mod cpio;
#[path = "../guest/pattern.rs"]
pub(crate) mod pattern;

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hayfork_devices::virtio::vsock::host::UnixSocket;
use hayfork_devices::virtio::vsock::{VsockConfig, VsockDevice};

pub(crate) use backend::{Carried, Notice, Service};

/// Longest wait for one answer or one piece of data.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Longest life of a guest.
const LIFETIME: Duration = Duration::from_secs(240);
const GUEST_CID: u64 = 3;

/// Ports of the host: each behaves in its own way.
pub(crate) const CONTROL: u32 = 1;
pub(crate) const ECHO: u32 = 52;
pub(crate) const SINK: u32 = 53;
pub(crate) const MANUAL: u32 = 54;

/// A running guest.
pub(crate) struct Linux {
    pub(crate) service: Service,
    pub(crate) notices: Receiver<Notice>,
    /// Connections of the guest to [`MANUAL`].
    pub(crate) manual: Receiver<UnixStream>,
    control: Receiver<UnixStream>,
    commands: UnixStream,
    answers: BufReader<UnixStream>,
    qemu: Arc<Mutex<Child>>,
    dir: tempfile::TempDir,
}

impl Linux {
    /// Boots a guest and waits until it takes commands.
    pub(crate) fn boot() -> Self {
        let kernel = kernel();
        let dir = tempfile::tempdir().unwrap();
        let initramfs = dir.path().join("initramfs.cpio");
        fs::write(&initramfs, cpio::archive_with_init(&guest_program(dir.path()))).unwrap();

        let (control_tx, control) = mpsc::channel();
        let (manual_tx, manual) = mpsc::channel();
        let connector = move |port| {
            let (ours, theirs) = UnixSocket::pair()?;
            match port {
                CONTROL => control_tx.send(theirs).unwrap(),
                ECHO => drop(thread::spawn(move || echo(theirs))),
                SINK => drop(thread::spawn(move || sink(theirs))),
                MANUAL => manual_tx.send(theirs).unwrap(),
                _ => return Err(io::ErrorKind::ConnectionRefused.into()),
            }
            Ok(ours)
        };
        let (notices_tx, notices) = mpsc::channel();
        let socket = dir.path().join("vhost-user");
        let mut config = VsockConfig::new(GUEST_CID);
        config.close_timeout = Duration::from_secs(2);
        let service = Service::start(&socket, config, Box::new(connector), notices_tx);

        let console = dir.path().join("console");
        let qemu = Arc::new(Mutex::new(start_qemu(&kernel, &initramfs, &socket, &console)));
        watch(&qemu);
        let commands = wait_for_control(&control, &qemu, dir.path());
        let answers = BufReader::new(commands.try_clone().unwrap());
        Self { service, notices, manual, control, commands, answers, qemu, dir }
    }

    /// Goes on with the device restored from its own state; gives the new host ends of connections.
    pub(crate) fn restore_device(&mut self) -> Carried {
        let mut carried = self.service.restore();
        self.commands = carried.remove(&CONTROL).expect("the command channel");
        self.answers = BufReader::new(self.commands.try_clone().unwrap());
        carried
    }

    /// Waits until the guest has opened its command channel again.
    pub(crate) fn wait_for_new_channel(&mut self) {
        self.commands = wait_for_control(&self.control, &self.qemu, self.dir.path());
        self.answers = BufReader::new(self.commands.try_clone().unwrap());
    }

    /// Has the guest do something, and gives its answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Has the guest start something.
    pub(crate) fn tell(&mut self, command: &str) {
        self.commands.write_all(format!("{command}\n").as_bytes()).unwrap();
    }

    /// The guest's next answer.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        if let Err(error) = self.answers.read_line(&mut line) {
            panic!("no answer: {error}\n{}", tail(self.dir.path()));
        }
        assert!(line.ends_with('\n'), "the guest went away\n{}", tail(self.dir.path()));
        line.trim_end().to_owned()
    }

    /// Waits until the device has no connection but the control channel.
    pub(crate) fn wait_until_idle(&self) {
        let end = Instant::now() + Duration::from_secs(15);
        loop {
            let (connections, buffered) = self.service.with_device(|d| (d.connections(), d.buffered()));
            if (connections, buffered) == (1, 0) {
                break;
            }
            assert!(Instant::now() < end, "{connections} connections, {buffered} bytes left");
            thread::sleep(Duration::from_millis(20));
        }
        let counters = self.service.with_device(VsockDevice::counters);
        assert_eq!((counters.violations, counters.malformed, counters.misaddressed), (0, 0, 0));
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        let mut qemu = self.qemu.lock().unwrap();
        let _ = qemu.kill();
        let _ = qemu.wait();
        if thread::panicking() {
            eprintln!("{}", tail(self.dir.path()));
        }
    }
}

/// The kernel of the image set.
fn kernel() -> PathBuf {
    let dir = std::env::var_os("HAYFORK_IMAGES_DIR").unwrap_or_else(|| {
        panic!(
            "HAYFORK_IMAGES_DIR is not set: this test boots the guest kernel of an image set; build one with \
             `cargo xtask images` and set the variable to its directory"
        )
    });
    let kernel = Path::new(&dir).join("vmlinux");
    assert!(kernel.is_file(), "{} is missing: HAYFORK_IMAGES_DIR must hold an image set", kernel.display());
    kernel
}

/// Compiles the guest's program.
fn guest_program(dir: &Path) -> Vec<u8> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest/init.rs");
    let output = dir.join("init");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let result = Command::new(rustc)
        .args(["--edition", "2024", "--target", "x86_64-unknown-linux-musl"])
        .args(["-C", "opt-level=2", "-C", "panic=abort", "-C", "strip=symbols"])
        .args(["-C", "target-feature=+crt-static", "-o"])
        .arg(&output)
        .arg(&source)
        .output()
        .expect("rustc runs");
    assert!(
        result.status.success(),
        "the guest program does not compile (is the target x86_64-unknown-linux-musl installed?)\n{}",
        String::from_utf8_lossy(&result.stderr)
    );
    fs::read(output).unwrap()
}

fn start_qemu(kernel: &Path, initramfs: &Path, socket: &Path, console: &Path) -> Child {
    let path = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    let errors = fs::File::create(console.with_extension("stderr")).unwrap();
    Command::new("qemu-system-x86_64")
        .args(["-machine", "microvm,acpi=off,rtc=on,memory-backend=mem,auto-kernel-cmdline=on"])
        .args(["-accel", "tcg", "-cpu", "max", "-m", "256", "-nodefaults", "-no-user-config"])
        .args(["-object", "memory-backend-memfd,id=mem,size=256M,share=on"])
        .args(["-display", "none", "-no-reboot", "-global", "virtio-mmio.force-legacy=false"])
        .args(["-kernel", &path(kernel), "-initrd", &path(initramfs)])
        .args(["-append", "console=ttyS0 quiet loglevel=4 reboot=t panic=-1 noreplace-smp"])
        .args(["-chardev", &format!("file,id=console,path={}", path(console))])
        .args(["-serial", "chardev:console"])
        .args(["-chardev", &format!("socket,id=vsock,path={}", path(socket))])
        .args(["-device", "vhost-user-vsock-device,chardev=vsock"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .expect("qemu-system-x86_64 runs (Debian: apt install qemu-system-x86)")
}

/// Ends a guest that lives too long, whatever the test waits for.
fn watch(qemu: &Arc<Mutex<Child>>) {
    let qemu = Arc::downgrade(qemu);
    thread::spawn(move || {
        thread::sleep(LIFETIME);
        if let Some(qemu) = qemu.upgrade() {
            let _ = qemu.lock().unwrap().kill();
        }
    });
}

fn wait_for_control(control: &Receiver<UnixStream>, qemu: &Mutex<Child>, dir: &Path) -> UnixStream {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Ok(stream) = control.recv_timeout(Duration::from_millis(200)) {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            return stream;
        }
        let status = qemu.lock().unwrap().try_wait().unwrap();
        if status.is_some() || Instant::now() > end {
            let _ = qemu.lock().unwrap().kill();
            panic!("the guest did not come up (QEMU: {status:?})\n{}", tail(dir));
        }
    }
}

/// What the console and QEMU said, for a failed test.
fn tail(dir: &Path) -> String {
    let read = |name: &str| fs::read(dir.join(name)).unwrap_or_default();
    let console = read("console");
    let from = console.len().saturating_sub(4000);
    format!(
        "console: {}\nQEMU: {}",
        String::from_utf8_lossy(&console[from..]),
        String::from_utf8_lossy(&read("console.stderr"))
    )
}

/// Sends back what comes.
fn echo(mut stream: UnixStream) {
    let mut buf = vec![0; 64 * 1024];
    while let Ok(n) = stream.read(&mut buf) {
        if n == 0 || stream.write_all(&buf[..n]).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// Takes all and answers with the length.
fn sink(mut stream: UnixStream) {
    let mut buf = vec![0; 256 * 1024];
    let mut len = 0u64;
    while let Ok(n) = stream.read(&mut buf) {
        if n == 0 {
            break;
        }
        len += n as u64;
    }
    let _ = stream.write_all(&len.to_le_bytes());
}

/// Tokens of closed connections with their reasons, from notices seen so far.
pub(crate) fn closed(
    notices: &Receiver<Notice>,
) -> HashMap<u64, hayfork_devices::virtio::vsock::CloseReason> {
    notices
        .try_iter()
        .filter_map(|notice| match notice {
            Notice::Closed(token, reason) => Some((token.0, reason)),
            _ => None,
        })
        .collect()
}
