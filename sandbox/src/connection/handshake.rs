//! From a launched machine to an agent that answers.
//!
//! The host speaks first; the carrier keeps its preamble until the agent opens its end. Three things may come then: the
//! answer, the machine's exit, or the end of the boot timeout. An agent that has not answered after
//! [`RETRY`] is taken to have swallowed the preamble as part of something else, and gets it again behind padding, each
//! time with a new nonce: an answer to an earlier preamble comes before the padding has thrown the agent back into its
//! search, so it must not count.
//!
//! The guest sets its wall clock by the preamble, which says when it was made. It lies there until a kernel has booted, so an answer
//! that comes late is followed by another preamble, which is answered at once: to the agent, the host has begun anew.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hayfork_protocol::Request;
use hayfork_protocol::handshake::{GuestHello, HostHello, HostPreamble};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::Error;
use crate::reaper::Vm;

/// After this time without an answer the preamble is sent again.
pub(crate) const RETRY: Duration = Duration::from_secs(15);

/// A clock that was set by a preamble of that age is good enough.
pub(crate) const FRESH: Duration = Duration::from_millis(15);

/// Preambles that a guest gets at most for the sake of its clock; on a loaded host all of them may be late.
const TELLINGS: usize = 3;

/// When a preamble is sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    /// Without an answer, after this time.
    pub(crate) retry: Duration,
    /// With an answer that took longer than this.
    pub(crate) fresh: Duration,
}

impl Default for Again {
    fn default() -> Self {
        Self { retry: RETRY, fresh: FRESH }
    }
}

/// The machine's exit is waited for this long after its channel has ended.
const EXIT_WAIT: Duration = Duration::from_secs(2);

/// What a handshake found.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) hello: GuestHello,
    /// Bytes behind the answer.
    pub(crate) rest: Vec<u8>,
}

/// Waits for the agent's answer.
///
/// # Errors
/// What the guest died of, a boot timeout, or an agent that speaks another version.
pub(crate) async fn meet(
    stream: &UnixStream,
    exit: &AsyncFd<OwnedFd>,
    vm: &Vm,
    launched: Instant,
    limit: Duration,
    again: Again,
) -> Result<Met, Error> {
    let deadline = launched + limit;
    let mut preamble = preamble()?;
    let mut output = preamble.bytes().to_vec();
    let mut sent = 0;
    let mut made = Instant::now();
    let mut tellings = 1;
    let mut next_retry = Instant::now() + again.retry;
    let mut buffer = vec![0; 16 * 1024];
    loop {
        tokio::select! {
            ready = exit.readable() => {
                drop(ready);
                return Err(vm.boot_failure(launched.elapsed()).into());
            }
            ready = stream.writable(), if sent < output.len() => {
                drop(ready);
                match stream.try_write(&output[sent..]) {
                    Ok(count) => {
                        sent += count;
                        // The agent's time begins when everything is on its way, however long that took.
                        next_retry = Instant::now() + again.retry;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return Err(gone(exit, vm, launched).await),
                }
            }
            ready = stream.readable() => {
                drop(ready);
                match stream.try_read(&mut buffer) {
                    Ok(0) => return Err(gone(exit, vm, launched).await),
                    Ok(count) => {
                        let mut input = &buffer[..count];
                        match preamble.receive(&mut input) {
                            Ok(Some(_)) if made.elapsed() > again.fresh && tellings < TELLINGS => {
                                // What else it has said is of a conversation that is over now.
                                preamble = self::preamble()?;
                                output = preamble.bytes().to_vec();
                                (sent, made) = (0, Instant::now());
                                tellings += 1;
                            }
                            Ok(Some(hello)) => return Ok(Met { hello, rest: input.to_vec() }),
                            Ok(None) => {}
                            Err(error) => return Err(Error::Protocol(error.to_string())),
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return Err(gone(exit, vm, launched).await),
                }
            }
            () = sleep_until(deadline) => return Err(vm.boot_failure(limit).into()),
            // Not while the last one is still on its way: it could not have been answered.
            () = sleep_until(next_retry), if sent == output.len() => {
                preamble = self::preamble()?;
                output = preamble.retry_bytes();
                (sent, made) = (0, Instant::now());
            }
        }
    }
}

/// The channel has ended: so has the machine, or it does at once.
async fn gone(exit: &AsyncFd<OwnedFd>, vm: &Vm, launched: Instant) -> Error {
    // If it has not, the answer is a boot timeout after the time until here, with the console's end.
    let _ = timeout(EXIT_WAIT, exit.readable()).await;
    vm.boot_failure(launched.elapsed()).into()
}

/// A preamble with a new nonce, fresh entropy and the time.
fn preamble() -> Result<HostPreamble, Error> {
    let mut nonce = [0; 16];
    let mut entropy = [0; 32];
    random(&mut nonce)?;
    random(&mut entropy)?;
    Ok(HostPreamble::new(nonce, &HostHello::new(wall_clock_ns(), entropy)))
}

/// Tells a guest whose time has stood still what time it is, as the preamble does. `request` does a request and waits for its
/// end. Gives up where a guest refuses: a clock that is behind is better than no sandbox.
pub(crate) async fn tell_time<F>(request: impl Fn(Request) -> F)
where
    F: Future<Output = Result<(), Error>>,
{
    for _ in 0..TELLINGS {
        let made = Instant::now();
        let told = request(Request::SetClock { wall_clock_ns: wall_clock_ns() }).await;
        if let Err(error) = &told {
            tracing::debug!(code = error.code(), %error, "a guest was not told the time");
        }
        if told.is_err() || made.elapsed() <= FRESH {
            return;
        }
    }
}

/// The host's wall clock, in nanoseconds since 1970.
fn wall_clock_ns() -> u64 {
    // A clock before 1970 is as good as none.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Fills `bytes` from the kernel's random numbers.
///
/// # Errors
/// There are none, which only a broken host explains.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes)
        .map_err(|error| Error::io("the host gives no random numbers", io::Error::other(error.to_string())))
}
