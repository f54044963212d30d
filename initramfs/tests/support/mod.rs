//! An agent in a process of its own, without walls and limits, and a host that talks to it over a socket.

#![allow(dead_code, unreachable_pub)] // each test binary uses a part
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hayfork_agent::agent::Agent;
use hayfork_agent::carrier::Carrier;
use hayfork_agent::languages::{self, Launch};
use hayfork_agent::poller::Poller;
use hayfork_agent::sys::fork::{Side, exit_now, fork};
use hayfork_agent::world::World;
use hayfork_protocol::handshake::HostPreamble;
use hayfork_protocol::message::{
    Command, Control, Execute, Failure, FailureCode, Finished, Keep, Language, OutputLimit, Request, User,
};
use hayfork_protocol::{Channel, Event, GuestHello, HostHello, Incoming, Mux, Role, StreamId};
use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Everything that a stream brought.
#[derive(Debug, Default, Clone)]
pub struct Outcome {
    pub stdout: Vec<u8>,
    /// Messages that standard output came in.
    pub pieces: u32,
    pub stderr: Vec<u8>,
    pub file: Vec<u8>,
    pub bundle: Vec<u8>,
    pub events: Vec<Event>,
    pub ends: Vec<Channel>,
    pub closed: bool,
}

impl Outcome {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn finished(&self) -> Finished {
        match self.events.last() {
            Some(Event::Finished(finished)) => finished.clone(),
            other => panic!("not finished but {other:?}; {self:?}"),
        }
    }

    pub fn failure(&self) -> Failure {
        match self.events.last() {
            Some(Event::Failed(failure)) => failure.clone(),
            other => panic!("not failed but {other:?}"),
        }
    }

    pub fn done(&self) -> u64 {
        match self.events.last() {
            Some(Event::Done { bytes }) => *bytes,
            other => panic!("not done but {other:?}"),
        }
    }

    pub fn is_started(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Started { .. }))
    }
}

/// The host's side, and the agent that it talks to.
pub struct Host {
    socket: UnixStream,
    pub mux: Mux,
    streams: Vec<(StreamId, Outcome)>,
    agent: Option<Pid>,
    pub folder: tempfile::TempDir,
    pub hello: GuestHello,
    /// Do not report received bytes as consumed.
    pub stingy: bool,
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(agent) = self.agent {
            // Drivers and commands outlive an agent that is killed.
            let pid = agent.as_raw_nonzero();
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let _ = kill_process(agent, Signal::KILL);
            let _ = rustix::process::waitpid(Some(agent), rustix::process::WaitOptions::empty());
            for child in children.unwrap_or_default().split_whitespace() {
                if let Some(child) = child.parse().ok().and_then(Pid::from_raw) {
                    let _ = rustix::process::kill_process_group(child, Signal::KILL);
                }
            }
        }
    }
}

fn nonce() -> [u8; 16] {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

fn hello() -> HostHello {
    // A wall clock that cannot be set, so that a test run as root leaves the machine's alone.
    HostHello::new(u64::MAX, [7; 32])
}

/// The test driver as the shell's.
pub fn test_driver() -> Vec<(Language, Launch)> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/driver.sh");
    let launch =
        Launch::parse(&format!("/bin/bash\n{script}\n{{dir}}\n"), "PATH=/usr/bin:/bin\nLANG=C.UTF-8\n");
    vec![(Language::Shell, launch)]
}

impl Host {
    /// Starts an agent with the test driver.
    pub fn start() -> Self {
        Self::with_drivers(test_driver())
    }

    pub fn with_drivers(drivers: Vec<(Language, Launch)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let path = folder.path().to_owned();
        let Side::Parent(agent) = fork().unwrap() else {
            drop(ours);
            run_agent(theirs, &path, drivers)
        };
        drop(theirs);
        let mut host = Self {
            socket: ours,
            mux: Mux::new(Role::Host),
            streams: Vec::new(),
            agent: Some(agent),
            folder,
            hello: GuestHello {
                version: 0,
                agent: String::new(),
                uptime_ns: 0,
                languages: Vec::new(),
                memory_bytes: 0,
            },
            stingy: false,
        };
        host.handshake();
        host
    }

    /// Begins a session, in place of the current one.
    pub fn handshake(&mut self) {
        self.shake_hands(false);
    }

    /// The same by an impatient host, which repeats its preamble at once.
    pub fn handshake_with_retry(&mut self) {
        self.shake_hands(true);
    }

    fn shake_hands(&mut self, retry: bool) {
        let mut preamble = HostPreamble::new(nonce(), &hello());
        self.socket.write_all(preamble.bytes()).unwrap();
        for _ in 0..if retry { 3 } else { 0 } {
            self.socket.write_all(&preamble.retry_bytes()).unwrap();
        }
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        self.mux = Mux::new(Role::Host);
        self.streams.clear();
        // One byte at a time, so that nothing of the session is taken.
        loop {
            let mut byte = [0];
            self.socket.read_exact(&mut byte).expect("the agent answers the handshake");
            if let Some(hello) = preamble.receive(&mut &byte[..]).unwrap() {
                self.hello = hello;
                return;
            }
        }
    }

    /// inotify instances of the agent's children.
    pub fn inotify_instances(&self) -> usize {
        let pid = self.agent.unwrap().as_raw_nonzero();
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let links = children
            .split_whitespace()
            .flat_map(|child| std::fs::read_dir(format!("/proc/{child}/fd")).into_iter().flatten().flatten());
        links
            .filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.ends_with("anon_inode:inotify")))
            .count()
    }

    /// Sends bytes past the mux.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub fn home(&self) -> std::path::PathBuf {
        self.folder.path().join("home")
    }

    pub fn open(&mut self, request: &Request) -> StreamId {
        let stream = self.mux.open(request).unwrap();
        self.streams.push((stream, Outcome::default()));
        stream
    }

    pub fn outcome(&self, stream: StreamId) -> &Outcome {
        &self.streams.iter().find(|(id, _)| *id == stream).expect("a known stream").1
    }

    fn flush(&mut self) {
        while !self.mux.output().is_empty() {
            let n = self.socket.write(self.mux.output()).unwrap();
            self.mux.advance(n);
        }
    }

    /// Moves bytes both ways for up to `wait`; false if nothing came.
    pub fn turn(&mut self, wait: Duration) -> bool {
        self.flush();
        self.socket.set_read_timeout(Some(wait)).unwrap();
        let mut buffer = vec![0; 64 * 1024];
        let n = match self.socket.read(&mut buffer) {
            Ok(0) => panic!("the agent closed the connection"),
            Ok(n) => n,
            Err(_) => return false,
        };
        let mut input = &buffer[..n];
        while let Some(incoming) = self.mux.receive(&mut input).unwrap() {
            let (id, what) = match incoming {
                Incoming::Event(id, event) => (
                    id,
                    Box::new(move |o: &mut Outcome| o.events.push(event)) as Box<dyn FnOnce(&mut Outcome)>,
                ),
                Incoming::Data(id, channel, bytes) => {
                    if !self.stingy {
                        self.mux.consumed(id, channel, bytes.len());
                    }
                    (
                        id,
                        Box::new(move |o: &mut Outcome| {
                            o.pieces += u32::from(channel == Channel::Stdout);
                            match channel {
                                Channel::Stdout => &mut o.stdout,
                                Channel::Stderr => &mut o.stderr,
                                Channel::File => &mut o.file,
                                Channel::Bundle => &mut o.bundle,
                                Channel::Stdin => panic!("stdin from the guest"),
                            }
                            .extend(bytes);
                        }) as Box<dyn FnOnce(&mut Outcome)>,
                    )
                }
                Incoming::Eof(id, channel) => {
                    (id, Box::new(move |o: &mut Outcome| o.ends.push(channel)) as _)
                }
                Incoming::Closed(id) => (id, Box::new(|o: &mut Outcome| o.closed = true) as _),
                _ => continue,
            };
            let outcome = self.streams.iter_mut().find(|(known, _)| *known == id).expect("a known stream");
            what(&mut outcome.1);
        }
        self.flush();
        true
    }

    /// Moves bytes until `until` holds of the stream's outcome.
    pub fn wait(&mut self, stream: StreamId, what: &str, until: impl Fn(&Outcome) -> bool) {
        let give_up = Instant::now() + PATIENCE;
        while !until(self.outcome(stream)) {
            assert!(Instant::now() < give_up, "waited for {what}: {:?}", self.outcome(stream));
            self.turn(Duration::from_millis(100));
        }
    }

    /// Waits for the stream's end.
    pub fn end(&mut self, stream: StreamId) -> Outcome {
        self.wait(stream, "the stream's end", |outcome| outcome.closed);
        self.outcome(stream).clone()
    }

    pub fn run(&mut self, request: &Request) -> Outcome {
        let stream = self.open(request);
        self.end(stream)
    }

    pub fn sh(&mut self, code: &str) -> Outcome {
        self.run(&shell(code))
    }

    /// Sends all of it, as credit allows, then its end.
    pub fn send(&mut self, stream: StreamId, channel: Channel, mut bytes: &[u8]) {
        let give_up = Instant::now() + PATIENCE;
        while !bytes.is_empty() && !self.outcome(stream).closed {
            let n = self.mux.data(stream, channel, bytes);
            bytes = &bytes[n..];
            assert!(Instant::now() < give_up, "no credit");
            if n == 0 {
                self.turn(Duration::from_millis(100));
            } else {
                self.flush();
            }
        }
        self.mux.eof(stream, channel);
        self.flush();
    }

    pub fn put(&mut self, path: &str, content: &[u8]) -> Outcome {
        let stream = self.open(&Request::WriteFile { path: path.into(), mode: 0o640 });
        self.send(stream, Channel::File, content);
        self.end(stream)
    }

    pub fn get(&mut self, path: &str) -> Outcome {
        self.run(&Request::ReadFile { path: path.into() })
    }

    pub fn control(&mut self, stream: StreamId, control: Control) {
        self.mux.control(stream, &control).unwrap();
        self.flush();
    }

    pub fn reset(&mut self, stream: StreamId) {
        self.mux.reset(stream);
        self.flush();
    }
}

fn run_agent(socket: UnixStream, folder: &std::path::Path, drivers: Vec<(Language, Launch)>) -> ! {
    let run = || -> Result<(), Box<dyn std::error::Error>> {
        languages::set(drivers);
        socket.set_nonblocking(true)?;
        let poller = Poller::new()?;
        let carrier = Carrier::from_socket(socket.into(), &poller)?;
        let world = World::without_walls(poller, folder)?;
        Agent::new(world, carrier, Some(Duration::from_millis(200)), Vec::new())?.run()?;
        Ok(())
    };
    // The test's process must not unwind into the harness a second time.
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    match result {
        Ok(Ok(())) => exit_now(0),
        Ok(Err(error)) => eprintln!("agent: {error}"),
        Err(_) => eprintln!("agent: panic"),
    }
    exit_now(1)
}

pub fn limit(bytes: u64, keep: Keep) -> OutputLimit {
    OutputLimit { bytes, keep }
}

pub fn execute(code: &str) -> Execute {
    Execute {
        context: 1,
        language: Language::Shell,
        code: code.to_owned(),
        env: Vec::new(),
        stdin: false,
        last: false,
        timeout_ms: None,
        stdout: limit(1_000_000, Keep::Head),
        stderr: limit(100_000, Keep::Head),
    }
}

pub fn shell(code: &str) -> Request {
    Request::Execute(execute(code))
}

pub fn command(text: &str) -> Command {
    Command {
        argv: ["/bin/sh", "-c", text].map(str::to_owned).to_vec(),
        cwd: None,
        env: Vec::new(),
        user: User::Sandbox,
        stdin: false,
        timeout_ms: None,
        stdout: limit(1_000_000, Keep::Head),
        stderr: limit(100_000, Keep::Head),
    }
}

pub fn is(code: FailureCode, outcome: &Outcome) {
    assert_eq!(outcome.failure().code, code, "{:?}", outcome.failure());
    assert!(outcome.closed);
}
