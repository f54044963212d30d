//! Talks to an agent over a Unix socket, for trying a guest by hand without the engine.
//!
//! ```text
//! cargo run -p hayfork-agent --example talk -- SOCKET OPERATION…
//!
//!   python:CODE  js:CODE  sh:CODE     an execution in context 1, 2, 3 (python@7:CODE for context 7)
//!   cmd:SHELL TEXT   root:SHELL TEXT  a command through sh -c
//!   stdin:TEXT                        standard input of the next execution or command
//!   timeout:MS                        timeout of the next ones (0 = none)
//!   limit:BYTES                       output bound of the next ones
//!   interrupt:MS  kill:MS  reset:MS   on the next execution or command, that long after it started
//!   put:PATH:BYTES  get:PATH          a transfer, with digest and speed
//!   ls:PATH  stat:PATH  mkdir:PATH  rm:PATH  mv:FROM:TO
//!   idle:CONTEXT  close:CONTEXT  stats  renew:HOSTNAME  sleep:MS  reconnect  shutdown
//! ```
//! The first output line says how long the guest took from the connection to its answer.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime};

use hayfork_protocol::handshake::HostPreamble;
use hayfork_protocol::message::{Command, Control, Execute, Keep, Language, OutputLimit, Renew, User};
use hayfork_protocol::{Channel, Event, GuestHello, HostHello, Incoming, Mux, Request, Role};

type Failure = Box<dyn std::error::Error>;

struct Host {
    path: String,
    socket: UnixStream,
    mux: Mux,
    rest: Vec<u8>,
}

fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Host {
    fn connect(path: &str) -> Result<(Self, GuestHello), Failure> {
        let give_up = Instant::now() + Duration::from_secs(60);
        let socket = loop {
            match UnixStream::connect(path) {
                Ok(socket) => break socket,
                Err(error) if Instant::now() > give_up => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let hello = HostHello::new(u64::try_from(now.as_nanos())?, random()?);
        let mut preamble = HostPreamble::new(random()?, &hello);
        let mut host = Self { path: path.to_owned(), socket, mux: Mux::new(Role::Host), rest: Vec::new() };
        host.socket.write_all(preamble.bytes())?;
        host.socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        loop {
            let mut buffer = [0; 4096];
            let n = match host.socket.read(&mut buffer) {
                Ok(0) => return Err("the guest closed the connection".into()),
                Ok(n) => n,
                Err(_) if Instant::now() < give_up => {
                    host.socket.write_all(&preamble.retry_bytes())?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let mut input = &buffer[..n];
            if let Some(hello) = preamble.receive(&mut input)? {
                host.rest = input.to_vec();
                return Ok((host, hello));
            }
        }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        while !self.mux.output().is_empty() {
            let n = self.socket.write(self.mux.output())?;
            self.mux.advance(n);
        }
        Ok(())
    }

    /// Waits up to `wait` and hands everything that came to `each`.
    fn receive(&mut self, wait: Duration, mut each: impl FnMut(&mut Mux, Incoming)) -> Result<(), Failure> {
        let mut bytes = std::mem::take(&mut self.rest);
        if bytes.is_empty() {
            self.socket.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
            bytes.resize(64 * 1024, 0);
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err("the guest closed the connection".into()),
                Ok(n) => bytes.truncate(n),
                Err(_) => bytes.clear(),
            }
        }
        let mut input = &bytes[..];
        while let Some(incoming) = self.mux.receive(&mut input)? {
            each(&mut self.mux, incoming);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Options {
    stdin: Option<Vec<u8>>,
    timeout: Option<u64>,
    limit: Option<u64>,
    /// What to say, and when.
    say: Option<(Duration, Option<Control>)>,
}

/// Everything a stream brought.
#[derive(Default)]
struct Report {
    bytes: u64,
    digest: Option<blake3::Hash>,
}

fn show(channel: Channel, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if bytes.len() > 2000 {
        println!("  {channel:?}: {} bytes", bytes.len());
    } else {
        for line in text.lines() {
            println!("  {channel:?}: {line}");
        }
    }
}

/// Runs one operation to its close.
fn run(
    host: &mut Host,
    request: &Request,
    options: &mut Options,
    upload: Option<u64>,
) -> Result<Report, Failure> {
    let began = Instant::now();
    let stream = host.mux.open(request)?;
    let mut outgoing: Vec<u8> = options.stdin.take().unwrap_or_default();
    let out_channel = if upload.is_some() { Channel::File } else { Channel::Stdin };
    let takes = request.takes(out_channel);
    let mut upload_left = upload.unwrap_or(0);
    let mut counter = 0u64;
    let mut said_end = !takes;
    let mut say = options.say.take();
    let mut hasher = blake3::Hasher::new();
    let mut sent_hasher = blake3::Hasher::new();
    let mut report = Report::default();
    let mut closed = false;
    let give_up = Instant::now() + Duration::from_secs(120);
    while !closed {
        while !said_end && host.mux.sendable(stream, out_channel) > 0 {
            if outgoing.is_empty() && upload_left > 0 {
                let size = usize::try_from(upload_left.min(64 * 1024))?;
                outgoing = (0..size)
                    .map(|i| (counter + i as u64).wrapping_mul(2_654_435_761).to_le_bytes()[2])
                    .collect();
                counter += size as u64;
                upload_left -= size as u64;
                sent_hasher.update(&outgoing);
            }
            if outgoing.is_empty() {
                host.mux.eof(stream, out_channel);
                said_end = true;
                break;
            }
            let n = host.mux.data(stream, out_channel, &outgoing);
            outgoing.drain(..n);
        }
        host.flush()?;
        let mut wait = Duration::from_secs(1);
        if let Some((after, what)) = &say {
            if began.elapsed() >= *after {
                match what {
                    Some(control) => host.mux.control(stream, control)?,
                    None => host.mux.reset(stream),
                }
                host.flush()?;
                say = None;
            } else {
                wait = after.saturating_sub(began.elapsed());
            }
        }
        host.receive(wait, |mux, incoming| match incoming {
            Incoming::Data(id, channel, bytes) if id == stream => {
                mux.consumed(id, channel, bytes.len());
                report.bytes += bytes.len() as u64;
                hasher.update(&bytes);
                if channel != Channel::File {
                    show(channel, &bytes);
                }
            }
            Incoming::Event(id, event) if id == stream => match event {
                Event::Entries(entries) => {
                    for entry in entries {
                        println!("  {:?} {:>10} {:o} {}", entry.kind, entry.bytes, entry.mode, entry.name);
                    }
                }
                event => println!("  {:6} ms {event:?}", began.elapsed().as_millis()),
            },
            Incoming::Closed(id) if id == stream => closed = true,
            Incoming::Writable(..) => {}
            other => println!("  {other:?}"),
        })?;
        if Instant::now() > give_up {
            return Err("nothing for two minutes".into());
        }
    }
    report.digest = Some(if upload.is_some() { sent_hasher.finalize() } else { hasher.finalize() });
    Ok(report)
}

fn limit(options: &Options) -> OutputLimit {
    OutputLimit { bytes: options.limit.unwrap_or(1_000_000), keep: Keep::HeadAndTail }
}

fn execute(language: Language, context: u32, code: &str, options: &Options) -> Request {
    Request::Execute(Execute {
        context,
        language,
        code: code.to_owned(),
        env: vec![("TALK".into(), "yes".into())],
        stdin: options.stdin.is_some(),
        last: false,
        timeout_ms: options.timeout,
        stdout: limit(options),
        stderr: limit(options),
    })
}

fn command(text: &str, user: User, options: &Options) -> Request {
    Request::Command(Command {
        argv: ["/bin/sh", "-c", text].map(str::to_owned).to_vec(),
        cwd: None,
        env: Vec::new(),
        user,
        stdin: options.stdin.is_some(),
        timeout_ms: options.timeout,
        stdout: limit(options),
        stderr: limit(options),
    })
}

fn speed(report: &Report, bytes: u64, since: Instant) -> String {
    let seconds = since.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss)]
    let rate = bytes as f64 / 1e6 / seconds;
    let digest = report.digest.map(|d| d.to_hex().to_string()).unwrap_or_default();
    format!("{bytes} bytes in {seconds:.2} s, {rate:.0} MB/s, digest {}", &digest[..16.min(digest.len())])
}

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("usage: talk SOCKET OPERATION…")?;
    let began = Instant::now();
    let (mut host, hello) = Host::connect(&path)?;
    println!("hello after {} ms: {hello:?}", began.elapsed().as_millis());
    let mut options = Options::default();
    for word in words {
        println!("{} ms: {}", began.elapsed().as_millis(), word.chars().take(100).collect::<String>());
        let (name, value) = word.split_once(':').unwrap_or((&word, ""));
        let (name, context) = name.split_once('@').map_or((name, None), |(n, c)| (n, c.parse().ok()));
        let after = Duration::from_millis(value.parse().unwrap_or(0));
        let owned = || value.to_owned();
        let request = match name {
            "python" => execute(Language::Python, context.unwrap_or(1), value, &options),
            "js" => execute(Language::JavaScript, context.unwrap_or(2), value, &options),
            "sh" => execute(Language::Shell, context.unwrap_or(3), value, &options),
            "cmd" => command(value, User::Sandbox, &options),
            "root" => command(value, User::Root, &options),
            "get" => Request::ReadFile { path: owned() },
            "ls" => Request::List { path: owned() },
            "stat" => Request::Stat { path: owned() },
            "mkdir" => Request::MakeDir { path: owned() },
            "rm" => Request::Remove { path: owned() },
            "mv" => {
                let (from, to) = value.split_once(':').ok_or("mv:FROM:TO")?;
                Request::Rename { from: from.into(), to: to.into() }
            }
            "idle" => Request::IdleOutput { context: value.parse()? },
            "close" => Request::CloseContext { context: value.parse()? },
            "stats" => Request::Stats,
            "shutdown" => Request::Shutdown,
            "renew" => Request::Renew(Renew {
                seed: *blake3::hash(value.as_bytes()).as_bytes(),
                machine_id: [1; 16],
                hostname: owned(),
            }),
            "put" => {
                let (path, bytes) = value.rsplit_once(':').ok_or("put:PATH:BYTES")?;
                let bytes: u64 = bytes.parse()?;
                let since = Instant::now();
                let request = Request::WriteFile { path: path.into(), mode: 0o644 };
                let report = run(&mut host, &request, &mut options, Some(bytes))?;
                println!("  {}", speed(&report, bytes, since));
                continue;
            }
            "sleep" => {
                std::thread::sleep(after);
                continue;
            }
            "stdin" => {
                options.stdin = Some(value.as_bytes().to_vec());
                continue;
            }
            "timeout" => {
                options.timeout = value.parse().ok().filter(|ms| *ms > 0);
                continue;
            }
            "limit" => {
                options.limit = value.parse().ok();
                continue;
            }
            "interrupt" | "kill" | "reset" => {
                let what = match name {
                    "interrupt" => Some(Control::Interrupt),
                    "kill" => Some(Control::Kill),
                    _ => None,
                };
                options.say = Some((after, what));
                continue;
            }
            "reconnect" => {
                let path = host.path.clone();
                drop(host);
                let since = Instant::now();
                let (again, hello) = Host::connect(&path)?;
                host = again;
                println!("  again after {} ms: {hello:?}", since.elapsed().as_millis());
                continue;
            }
            _ => return Err(format!("no such operation: {name}").into()),
        };
        let since = Instant::now();
        let report = run(&mut host, &request, &mut options, None)?;
        if name == "get" {
            println!("  {}", speed(&report, report.bytes, since));
        }
        if name == "stats" {
            println!("  round trip {} us", since.elapsed().as_micros());
        }
    }
    println!("{} ms: end", began.elapsed().as_millis());
    Ok(())
}
