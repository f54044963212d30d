//! A guest that does what a test says: a backend whose machines are threads at the other end of a socket pair, which
//! speak the guest's side of the protocol.
//!
//! It stands for what a real guest cannot be made to do at will: die at a given moment, send garbage, send too much,
//! not obey. What a real guest does is tested with real guests.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, net, thread};

use hayfork_protocol::frame::Channel as DataChannel;
use hayfork_protocol::handshake::{GuestHello, GuestPreamble};
use hayfork_protocol::limits::VERSION;
use hayfork_protocol::message::{Event, Finished, Request, Status};
use hayfork_protocol::mux::{Incoming, Mux, Role, StreamId};
use hayfork_vmm::backend::{
    Accelerator, Backend, BackendError, Capabilities, Channel, ExitKind, ExitReport, HostMemory,
    ImageDigests, Machine, MachineSpec, Place, ProcessStatus, Template,
};
use hayfork_vmm::snapshot::{self, Contents, Identity, Memory, SnapshotError, SnapshotFile, StateKind};

use crate::backend_choice::Backends;
use crate::connection::handshake::Again;
use crate::connection::lock;
use crate::connection::watchdog::Patience;
use crate::{Engine, EngineOptions, TemplateStore};

/// Fake guests have no clock, and are not told the time again.
const NEVER_AGAIN: Again = Again { retry: Duration::from_millis(500), fresh: Duration::MAX };

/// What a guest does, from its first instruction to its end. It exits when this returns, in the given way; `None`: when
/// it is killed.
type Script = dyn Fn(Guest) -> Option<ExitKind> + Send + Sync;

/// The backend, and what its machines have come to.
#[derive(Clone)]
pub(crate) struct FakeBackend {
    script: Arc<Script>,
    pub(crate) launched: Arc<AtomicUsize>,
    pub(crate) killed: Arc<AtomicUsize>,
    /// What it says about the host.
    capabilities: Capabilities,
    /// Whether its machines can be kept, and how many were made of kept ones.
    keeps: bool,
    /// How long that takes.
    pub(crate) keeping: Duration,
    pub(crate) restored: Arc<AtomicUsize>,
    /// Times that something was to be made ahead for the next restore.
    pub(crate) prepared: Arc<AtomicUsize>,
    /// Restores with these numbers, from 1 on, panic.
    pub(crate) panics_at: Range<usize>,
    /// The kernel of the newest machine.
    pub(crate) kernel: Arc<Mutex<PathBuf>>,
}

impl FakeBackend {
    pub(crate) fn new(script: impl Fn(Guest) -> Option<ExitKind> + Send + Sync + 'static) -> Self {
        Self {
            script: Arc::new(script),
            launched: Arc::default(),
            killed: Arc::default(),
            capabilities: Capabilities::new("fake", "threads".into(), Accelerator::Tcg),
            keeps: false,
            keeping: Duration::ZERO,
            restored: Arc::default(),
            prepared: Arc::default(),
            panics_at: 0..0,
            kernel: Arc::default(),
        }
    }

    /// The same with machines that can be kept: those made of one begin anew with the script.
    pub(crate) fn with_templates(self) -> Self {
        Self { keeps: true, ..self }
    }

    /// The same as if it ran on kvm_pvm.
    pub(crate) fn on_kvm_pvm(self) -> Self {
        let capabilities = Capabilities::new("fake", "threads".into(), Accelerator::Kvm).on_kvm_pvm();
        Self { capabilities, ..self }
    }

    /// The same with other limits.
    pub(crate) fn with_limits(mut self, vcpus: u8, memory_mib: u32) -> Self {
        (self.capabilities.max_vcpus, self.capabilities.max_memory_mib) = (vcpus, memory_mib);
        self
    }

    /// Machines that are neither killed nor gone by themselves, after giving the reaper up to 5 s.
    pub(crate) fn wait_until_killed(&self, count: usize) {
        let until = Instant::now() + Duration::from_secs(5);
        while self.killed.load(Ordering::SeqCst) < count && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.killed.load(Ordering::SeqCst), count, "machines killed");
    }

    /// An engine on this backend, with an image set of small files, and short patience.
    pub(crate) fn engine(&self) -> TestEngine {
        self.engine_with(Patience {
            start: Duration::from_secs(1),
            end: Duration::from_secs(1),
            close: Duration::from_secs(1),
        })
    }

    /// The same with a store of templates there.
    pub(crate) fn engine_with_store(&self, folder: &Path) -> TestEngine {
        let template_store = TemplateStore::Folder { path: folder.to_owned(), most: 1 << 20 };
        self.engine_of(|options| options.template_store = template_store)
    }

    /// The same as [`FakeBackend::engine`] with other options.
    pub(crate) fn engine_of(&self, change: impl FnOnce(&mut EngineOptions)) -> TestEngine {
        let second = Duration::from_secs(1);
        self.engine_made(Patience { start: second, end: second, close: second }, NEVER_AGAIN, change)
    }

    pub(crate) fn engine_with(&self, patience: Patience) -> TestEngine {
        self.engine_made(patience, NEVER_AGAIN, |_| {})
    }

    /// One that speaks to its guests again as others do.
    pub(crate) fn engine_that_speaks_again(&self) -> TestEngine {
        self.engine_made(Patience::default(), Again::default(), |_| {})
    }

    fn engine_made(
        &self,
        patience: Patience,
        again: Again,
        change: impl FnOnce(&mut EngineOptions),
    ) -> TestEngine {
        let images = tempfile::tempdir().unwrap();
        write_set(images.path());
        let mut options = EngineOptions {
            images: Some(images.path().to_owned()),
            boot_timeout: Duration::from_secs(5),
            // No machine but those that a test asks for.
            templates: self.keeps,
            template_store: TemplateStore::Off,
            ..EngineOptions::default()
        };
        change(&mut options);
        let engine =
            Engine::with_patience(options, Backends::One(Arc::new(self.clone())), patience, again).unwrap();
        TestEngine { engine, _images: images }
    }
}

/// An engine with its images.
pub(crate) struct TestEngine {
    pub(crate) engine: Engine,
    _images: tempfile::TempDir,
}

impl std::ops::Deref for TestEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

fn write_set(directory: &Path) {
    let digest = "0".repeat(64);
    let part = |file: &str| format!(r#"{{"file": "{file}", "blake3": "{digest}", "bytes": 1}}"#);
    let manifest = format!(
        r#"{{"format": 1, "version": "test", "kernel": {}, "kernels": {{"pvm": {}}}, "initramfs": {},
            "images": {{"python": {}}}}}"#,
        part("vmlinux"),
        part("vmlinux-pvm"),
        part("initramfs.cpio"),
        part("python.erofs")
    );
    for file in ["vmlinux", "vmlinux-pvm", "initramfs.cpio", "python.erofs"] {
        fs::write(directory.join(file), "x").unwrap();
    }
    fs::write(directory.join("manifest.json"), manifest).unwrap();
}

/// The other end of a machine's channel.
pub(crate) struct Guest {
    pub(crate) stream: UnixStream,
    pub(crate) mux: Mux,
    pending: Vec<u8>,
}

impl Guest {
    fn new(stream: UnixStream) -> Self {
        Self { stream, mux: Mux::new(Role::Guest), pending: Vec::new() }
    }

    /// Reads some bytes; `None` when the host is gone.
    pub(crate) fn read(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 64 * 1024];
        let count = self.stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        buffer.truncate(count);
        Some(buffer)
    }

    /// Writes bytes as they are; the host may be gone.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Waits for the host's preamble and answers it.
    pub(crate) fn meet(&mut self) -> Option<()> {
        self.meet_as(VERSION, &["python"])
    }

    pub(crate) fn meet_as(&mut self, version: u16, languages: &[&str]) -> Option<()> {
        let nonce = self.preamble()?;
        self.answer(&nonce, version, languages);
        Some(())
    }

    /// Waits for a preamble.
    pub(crate) fn preamble(&mut self) -> Option<[u8; 16]> {
        self.preamble_and_time().map(|(nonce, _)| nonce)
    }

    /// Waits for a preamble; gives its nonce and the time that it tells.
    pub(crate) fn preamble_and_time(&mut self) -> Option<([u8; 16], Duration)> {
        let mut search = GuestPreamble::new();
        loop {
            let bytes = std::mem::take(&mut self.pending);
            let mut input = &bytes[..];
            if let Some((nonce, hello)) = search.receive(&mut input) {
                assert!(hello.wall_clock_ns > 0 && hello.entropy != [0; 32]);
                self.pending = input.to_vec();
                return Some((nonce, Duration::from_nanos(hello.wall_clock_ns)));
            }
            self.pending = self.read()?;
        }
    }

    pub(crate) fn answer(&mut self, nonce: &[u8; 16], version: u16, languages: &[&str]) {
        let hello = GuestHello {
            version,
            agent: "fake".into(),
            uptime_ns: 1,
            languages: languages.iter().map(|name| (*name).to_owned()).collect(),
            memory_bytes: 1,
        };
        self.write(&GuestPreamble::answer(nonce, &hello));
    }

    /// Waits for what the host says next; `None` when the host is gone.
    pub(crate) fn next(&mut self) -> Option<Incoming> {
        loop {
            self.flush();
            let bytes = std::mem::take(&mut self.pending);
            let mut input = &bytes[..];
            let incoming = self.mux.receive(&mut input).expect("the host keeps to the protocol");
            self.pending = input.to_vec();
            if incoming.is_some() {
                return incoming;
            }
            self.pending = self.read()?;
        }
    }

    /// Waits for the next request.
    pub(crate) fn open(&mut self) -> Option<(StreamId, Request)> {
        loop {
            if let Incoming::Open(id, request) = self.next()? {
                return Some((id, request));
            }
        }
    }

    pub(crate) fn event(&mut self, id: StreamId, event: &Event) {
        let _ = self.mux.event(id, event);
        self.flush();
    }

    /// Sends as much as there is credit for and says how much.
    pub(crate) fn data(&mut self, id: StreamId, channel: DataChannel, bytes: &[u8]) -> usize {
        let sent = self.mux.data(id, channel, bytes);
        self.flush();
        sent
    }

    /// Ends an operation with that event.
    pub(crate) fn end(&mut self, id: StreamId, event: &Event) {
        self.event(id, event);
        self.close(id);
    }

    pub(crate) fn close(&mut self, id: StreamId) {
        self.mux.close(id);
        self.flush();
    }

    /// Ends an execution well.
    pub(crate) fn finish(&mut self, id: StreamId) {
        self.end(id, &finished(0));
    }

    fn flush(&mut self) {
        let bytes = self.mux.output().to_vec();
        self.mux.advance(bytes.len());
        self.write(&bytes);
    }

    /// Waits until the host is gone.
    pub(crate) fn idle(mut self) -> Option<ExitKind> {
        while self.next().is_some() {}
        None
    }
}

pub(crate) fn finished(exit_code: i32) -> Event {
    Event::Finished(Finished {
        status: Status::Exited,
        exit_code,
        state_reset: false,
        spawn_us: 10,
        run_us: 20,
    })
}

/// How a machine has ended, shared by its handle and its thread.
#[derive(Default)]
struct Ending {
    report: Mutex<Option<ExitReport>>,
    /// Closed at the exit, which makes the other end readable.
    alive: Mutex<Option<PipeWriter>>,
}

impl Ending {
    fn end(&self, kind: ExitKind) {
        lock(&self.report).get_or_insert_with(|| ExitReport {
            kind,
            status: ProcessStatus::Code(1),
            console_tail: "the last words of the console".into(),
            stderr_tail: "the last words of the hypervisor".into(),
        });
        *lock(&self.alive) = None;
    }
}

struct FakeMachine {
    channel: Option<UnixStream>,
    guest: UnixStream,
    exit: PipeReader,
    ending: Arc<Ending>,
    backend: FakeBackend,
    counted: bool,
}

struct FakeTemplate(FakeBackend);

impl Template for FakeTemplate {
    fn restore(&self) -> Result<Box<dyn Machine>, BackendError> {
        let number = self.0.restored.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(!self.0.panics_at.contains(&number), "a fault of the backend");
        self.0.start()
    }

    fn prepare(&self) -> Result<(), BackendError> {
        self.0.prepared.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn with_working_set(&self, _: Vec<Range<u64>>) -> Arc<dyn Template> {
        Arc::new(Self(self.0.clone()))
    }

    fn ram(&self) -> u64 {
        256 << 20
    }

    fn save(&self, path: &Path, about: &[u8]) -> Result<(), BackendError> {
        Ok(save(path, about)?)
    }
}

/// Saves a machine: its file has neither memory nor state.
pub(crate) fn save(path: &Path, about: &[u8]) -> Result<(), SnapshotError> {
    let contents = Contents {
        identity: &Identity::new("fake"),
        about,
        kind: StateKind::Monitor,
        state: &[],
        memory: Memory { length: 0, pieces: Vec::new() },
        working_set: &[],
    };
    snapshot::write(path, &contents)
}

impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn check(&self) -> Result<Capabilities, BackendError> {
        Ok(self.capabilities.clone())
    }

    fn launch(&self, spec: &MachineSpec) -> Result<Box<dyn Machine>, BackendError> {
        spec.validate()?;
        self.kernel.lock().unwrap().clone_from(&spec.kernel);
        self.launched.fetch_add(1, Ordering::SeqCst);
        self.start()
    }

    fn load(
        &self,
        path: &Path,
        _: &ImageDigests,
        _: Option<&Path>,
    ) -> Result<(Arc<dyn Template>, Vec<u8>), BackendError> {
        let file = SnapshotFile::open(path)?;
        Ok((Arc::new(FakeTemplate(self.clone())), file.about().to_vec()))
    }
}

impl FakeBackend {
    fn start(&self) -> Result<Box<dyn Machine>, BackendError> {
        let spawn = |source: io::Error| BackendError::Spawn { what: "a fake", source };
        let (host, guest) = UnixStream::pair().map_err(spawn)?;
        let (exit, alive) = io::pipe().map_err(spawn)?;
        let ending = Arc::new(Ending { report: Mutex::default(), alive: Mutex::new(Some(alive)) });
        let (script, end) = (Arc::clone(&self.script), Arc::clone(&ending));
        let stream = guest.try_clone().map_err(spawn)?;
        let last = guest.try_clone().map_err(spawn)?;
        thread::spawn(move || {
            if let Some(kind) = script(Guest::new(stream)) {
                end.end(kind);
                let _ = last.shutdown(net::Shutdown::Both);
            }
        });
        let backend = self.clone();
        Ok(Box::new(FakeMachine { channel: Some(host), guest, exit, ending, backend, counted: false }))
    }
}

impl Machine for FakeMachine {
    fn take_channel(&mut self) -> Option<Channel> {
        self.channel.take().map(Channel::Unix)
    }

    fn exit_fd(&self) -> BorrowedFd<'_> {
        self.exit.as_fd()
    }

    fn try_exit(&self) -> Option<ExitReport> {
        lock(&self.ending.report).clone()
    }

    fn console_tail(&self) -> String {
        "the last words of the console".into()
    }

    fn kill(&mut self) -> Result<ExitReport, BackendError> {
        self.ending.end(ExitKind::Killed);
        let _ = self.guest.shutdown(net::Shutdown::Both);
        if !std::mem::replace(&mut self.counted, true) {
            self.backend.killed.fetch_add(1, Ordering::SeqCst);
        }
        Ok(self.try_exit().expect("just ended"))
    }

    fn capture(&self) -> Result<Arc<dyn Template>, BackendError> {
        thread::sleep(self.backend.keeping);
        if self.backend.keeps {
            Ok(Arc::new(FakeTemplate(self.backend.clone())))
        } else {
            Err(BackendError::Unsupported { what: "a fake" })
        }
    }

    fn host_memory(&self) -> Option<HostMemory> {
        None
    }

    fn process_id(&self) -> Option<u32> {
        None
    }

    fn place(&self) -> Place {
        Place::ThisProcess
    }
}

impl Drop for FakeMachine {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
