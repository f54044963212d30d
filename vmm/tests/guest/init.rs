//! The test guest's /init: does what the kernel parameter `test=` says. Compiled by the tests for the musl target, so
//! it uses the standard library only. Serves over what the kernel parameter `hayfork.carrier=` names, as the agent does.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

use std::ffi::{CString, c_char, c_int, c_short, c_ulong, c_void};

unsafe extern "C" {
    fn mount(source: *const c_char, target: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void) -> c_int;
    fn reboot(how: c_int) -> c_int;
    fn poll(fds: *mut Poll, count: c_ulong, timeout: c_int) -> c_int;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn bind(socket: c_int, address: *const VsockAddress, size: u32) -> c_int;
    fn listen(socket: c_int, backlog: c_int) -> c_int;
    fn accept4(socket: c_int, address: *mut c_void, size: *mut u32, flags: c_int) -> c_int;
}

#[repr(C)]
struct Poll {
    fd: c_int,
    events: c_short,
    revents: c_short,
}

/// `struct sockaddr_vm`
#[repr(C)]
struct VsockAddress {
    family: u16,
    reserved: u16,
    port: u32,
    cid: u32,
    zero: [u8; 4],
}

static KEPT: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());

static FIRED: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());

/// Nanoseconds of the monotonic clock since the first call.
fn monotonic() -> u128 {
    static FIRST: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_nanos()
}

fn main() {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        let _ = fs::create_dir(target);
        let text = |text: &str| CString::new(text).unwrap();
        let (source, target, kind) = (text(kind), text(target), text(kind));
        unsafe { mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
    }
    let cmdline = fs::read_to_string("/proc/cmdline").unwrap();
    let parameter = |name: &str| cmdline.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let linger = parameter("hayfork.linger").unwrap().parse().unwrap();
    match parameter("test").unwrap() {
        "power-off" => power_off(),
        "die" => console("about to die\n"),
        "silent" => {
            console("waiting for ever\n");
            std::thread::sleep(Duration::from_secs(3600));
        }
        "flood" => {
            for line in 0..3000 {
                console(&format!("line {line} of the flood\n"));
            }
            console("the flood is over\n");
            power_off();
        }
        "escape" => {
            console("\x1b]0;owned\x07harmless\n");
            power_off();
        }
        "serve" => serve(parameter("hayfork.carrier").unwrap(), Duration::from_secs(linger)),
        other => console(&format!("unknown test {other}\n")),
    }
}

fn console(text: &str) {
    let mut console = OpenOptions::new().write(true).open("/dev/console").unwrap();
    console.write_all(text.as_bytes()).unwrap();
}

fn power_off() {
    unsafe { reboot(0x0123_4567) };
}

/// Answers requests of one line each until the host's end has been closed for the linger time.
fn serve(carrier: &str, linger: Duration) {
    let listener = match carrier.split_once(':') {
        Some(("vsock", port)) => Some(listen_on(port.parse().unwrap())),
        _ => None,
    };
    let is_vsock = listener.is_some();
    let mut names = [String::new(), String::new()];
    let (mut port, mut other) = match carrier.split_once(':') {
        Some(("virtio-serial", name)) => {
            names = [name.to_string(), format!("{name}.2")];
            (open_port(&names[0]), Some(open_port(&names[1])))
        }
        Some(("vsock", _)) => (accept(listener.unwrap(), true).unwrap(), None),
        _ => panic!("unknown carrier {carrier}"),
    };
    let mut gone_since: Option<Instant> = None;
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let result = port.read(&mut buffer);
        let count = *result.as_ref().unwrap_or(&0);
        if count == 0 {
            // A host that lost its connection makes a new one.
            if let Some(next) = listener.and_then(|listener| accept(listener, false)) {
                port = next;
                request.clear();
                gone_since = None;
                continue;
            }
            // So does one that is at the other port.
            if other.as_ref().is_some_and(|other| is_hung_up(&port) && !is_hung_up(other)) {
                std::mem::swap(&mut port, other.as_mut().unwrap());
                names.swap(0, 1);
                // What is left in the old one goes when it is closed.
                drop(other.take());
                other = Some(open_port(&names[1]));
                request.clear();
                gone_since = None;
                continue;
            }
            let mut fds = Poll { fd: port.as_raw_fd(), events: 1, revents: 0 };
            unsafe { poll(&mut fds, 1, 50) };
            // A port hangs up; a stream has an end.
            let is_gone = if is_vsock { result.is_ok() } else { fds.revents & 0x10 != 0 };
            if !is_gone {
                gone_since = None;
                continue;
            }
            // What the host was saying is not for the next one.
            request.clear();
            let since = *gone_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= linger {
                console("the host is gone\n");
                power_off();
            }
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        request.extend_from_slice(&buffer[..count]);
        while let Some(end) = request.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = request.drain(..=end).collect();
            answer(&mut port, String::from_utf8_lossy(&line).trim(), &mut request);
        }
    }
}

/// Whether the host's end of a port is closed.
fn is_hung_up(port: &File) -> bool {
    let mut fds = Poll { fd: port.as_raw_fd(), events: 0, revents: 0 };
    unsafe { poll(&mut fds, 1, 0) };
    fds.revents & 0x10 != 0
}

/// A non-blocking listener on this vsock port.
fn listen_on(port: u32) -> c_int {
    const AF_VSOCK: u16 = 40;
    const SOCK_STREAM: c_int = 1;
    const SOCK_NONBLOCK: c_int = 0o4000;
    const ANY: u32 = u32::MAX;
    let address = VsockAddress { family: AF_VSOCK, reserved: 0, port, cid: ANY, zero: [0; 4] };
    let check = |what, result: c_int| {
        if result < 0 {
            console(&format!("{what}: {}\n", std::io::Error::last_os_error()));
        }
        result
    };
    unsafe {
        let listener = check("socket", socket(AF_VSOCK.into(), SOCK_STREAM | SOCK_NONBLOCK, 0));
        check("bind", bind(listener, &address, size_of::<VsockAddress>() as u32));
        check("listen", listen(listener, 1));
        listener
    }
}

/// A connection of the host, non-blocking; `None` if there is none and that is not to be waited for.
fn accept(listener: c_int, wait: bool) -> Option<File> {
    const SOCK_NONBLOCK: c_int = 0o4000;
    loop {
        let stream = unsafe { accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), SOCK_NONBLOCK) };
        if stream >= 0 {
            return Some(unsafe { File::from_raw_fd(stream) });
        }
        if !wait {
            return None;
        }
        let mut fds = Poll { fd: listener, events: 1, revents: 0 };
        unsafe { poll(&mut fds, 1, -1) };
    }
}

/// The port of that name, non-blocking. On a port that the host has open, reads of nothing give EAGAIN.
fn open_port(name: &str) -> File {
    use std::os::unix::fs::OpenOptionsExt;
    for port in fs::read_dir("/sys/class/virtio-ports").unwrap() {
        let port = port.unwrap();
        if fs::read_to_string(port.path().join("name")).unwrap().trim() == name {
            let path = format!("/dev/{}", port.file_name().to_str().unwrap());
            const O_NONBLOCK: i32 = 0o4000;
            return OpenOptions::new().read(true).write(true).custom_flags(O_NONBLOCK).open(path).unwrap();
        }
    }
    panic!("there is no port for the agent");
}

/// Writes it all, waiting where the port is full; gives up when the host has gone.
fn send(port: &mut File, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match port.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
            Err(_) if !wait(port, 4) => return,
            Err(_) => {}
        }
    }
}

/// Waits until the port is ready for what `events` says, at most a second; false when the host has gone.
fn wait(port: &File, events: c_short) -> bool {
    let mut fds = Poll { fd: port.as_raw_fd(), events, revents: 0 };
    unsafe { poll(&mut fds, 1, 1000) };
    fds.revents & 0x10 == 0
}

/// One request, one answer: a line with a length, then so many bytes.
fn answer(port: &mut File, request: &str, rest: &mut Vec<u8>) {
    let (verb, argument) = request.split_once(' ').unwrap_or((request, ""));
    let result: Result<Vec<u8>, String> = match verb {
        "ping" => Ok(argument.as_bytes().to_vec()),
        "read" => fs::read(argument).map_err(|error| error.to_string()),
        "list" => fs::read_dir(argument).map_err(|error| error.to_string()).map(|entries| {
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names.join(" ").into_bytes()
        }),
        "write" => OpenOptions::new()
            .write(true)
            .open(argument)
            .and_then(|mut file| file.write_all(&[0x55; 4096]).and_then(|()| file.sync_all()))
            .map(|()| b"written".to_vec())
            .map_err(|error| error.to_string()),
        // Sends so many bytes of a pattern.
        "get" => Ok((0..argument.parse::<u32>().unwrap()).map(|at| (at % 251) as u8).collect()),
        // Takes so many bytes and says their sum.
        "put" => {
            let count: usize = argument.parse().unwrap();
            let mut buffer = [0; 65536];
            while rest.len() < count {
                match port.read(&mut buffer) {
                    Ok(read @ 1..) => rest.extend_from_slice(&buffer[..read]),
                    Ok(0) => return,
                    Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
                    _ if !wait(port, 1) => return,
                    _ => {}
                }
            }
            let sum: u64 = rest.drain(..count).map(u64::from).sum();
            Ok(sum.to_string().into_bytes())
        }
        // What it keeps in memory, for as long as it lives.
        "keep" => {
            *KEPT.lock().unwrap() = argument.to_string();
            Ok(Vec::new())
        }
        "kept" => Ok(KEPT.lock().unwrap().clone().into_bytes()),
        // Nanoseconds of the monotonic clock since the first question for them.
        "monotonic" => Ok(monotonic().to_string().into_bytes()),
        // Sets so many timers, each so many ms after the one before.
        "timers" => {
            let (count, apart) = argument.split_once(' ').unwrap();
            let (count, apart): (u64, u64) = (count.parse().unwrap(), apart.parse().unwrap());
            for number in 1..=count {
                std::thread::spawn(move || {
                    let due = monotonic() + u128::from(number * apart) * 1_000_000;
                    std::thread::sleep(Duration::from_millis(number * apart));
                    let mut fired = FIRED.lock().unwrap();
                    *fired += &format!("{due} {}\n", monotonic());
                });
            }
            Ok(Vec::new())
        }
        // When each of these was due that has fired, and when it did, by the clock of "monotonic".
        "fired" => Ok(FIRED.lock().unwrap().clone().into_bytes()),
        // Streams without keeping or making anything, in writes and reads of 64 KiB: to measure the carrier.
        "source" => {
            let mut left: usize = argument.parse().unwrap();
            let piece = vec![0x5a; 65536.min(left)];
            while left > 0 {
                let part = &piece[..piece.len().min(left)];
                send(port, part);
                left -= part.len();
            }
            Ok(Vec::new())
        }
        "sink" => {
            let count: usize = argument.parse().unwrap();
            let mut taken = rest.drain(..rest.len().min(count)).len();
            let mut buffer = vec![0; 65536];
            while taken < count {
                match port.read(&mut buffer) {
                    Ok(read @ 1..) => taken += read,
                    Ok(0) => return,
                    Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
                    _ if !wait(port, 1) => return,
                    _ => {}
                }
            }
            Ok(Vec::new())
        }
        // Touches so many MiB.
        "touch" => {
            let memory = vec![1u8; argument.parse::<usize>().unwrap() << 20];
            Ok(memory.iter().step_by(4096).map(|&byte| u64::from(byte)).sum::<u64>().to_string().into_bytes())
        }
        "clock" => {
            // How long the guest takes for what the host measures too.
            let start = Instant::now();
            std::thread::sleep(Duration::from_millis(argument.parse().unwrap()));
            Ok(start.elapsed().as_micros().to_string().into_bytes())
        }
        _ => Err(format!("unknown request {request:?}")),
    };
    let (mark, bytes) = match result {
        Ok(bytes) => ("ok", bytes),
        Err(error) => ("error", error.into_bytes()),
    };
    send(port, format!("{mark} {}\n", bytes.len()).as_bytes());
    send(port, &bytes);
}
