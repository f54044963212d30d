//! The only program of the guest: /init of a machine that tests the vsock device.
//!
//! It serves ports for connections of the host, then connects to port 1 of the host and does what it is
//! told there, one line for each command and one for each answer.

mod pattern;
mod vsock;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;

use pattern::{Digest, Pattern};
use vsock::{Listener, connect_to, restart};

const HOST: u32 = 2;

/// Sends back what comes, until the end; then ends too.
fn echo(mut stream: UnixStream) -> io::Result<()> {
    let mut buf = vec![0; 64 * 1024];
    loop {
        let n = stream.read(&mut buf)?;
        if n == 0 {
            return stream.shutdown(Shutdown::Write);
        }
        stream.write_all(&buf[..n])?;
    }
}

/// Takes everything up to the end, then answers with length and digest.
fn digest(mut stream: UnixStream) -> io::Result<()> {
    let mut digest = Digest::default();
    let mut buf = vec![0; 64 * 1024];
    loop {
        let n = stream.read(&mut buf)?;
        if n == 0 {
            break;
        }
        digest.update(&buf[..n]);
    }
    let (len, sum) = digest.finish();
    stream.write_all(&[len.to_le_bytes(), sum.to_le_bytes()].concat())
}

/// Takes everything up to the end without looking at it, then answers with the length.
fn sink(mut stream: UnixStream) -> io::Result<()> {
    let mut buf = vec![0; 256 * 1024];
    let mut len = 0u64;
    loop {
        let n = stream.read(&mut buf)?;
        if n == 0 {
            break;
        }
        len += n as u64;
    }
    stream.write_all(&len.to_le_bytes())
}

/// Is told length, size of writes and seed, and sends that much of the pattern.
fn source(mut stream: UnixStream) -> io::Result<()> {
    let mut order = [0; 24];
    stream.read_exact(&mut order)?;
    let number = |at: usize| u64::from_le_bytes(order[at..at + 8].try_into().unwrap());
    send_pattern(&mut stream, number(0), number(8), number(16))?;
    stream.shutdown(Shutdown::Write)?;
    // Whoever ordered it says when he is done.
    stream.read_to_end(&mut Vec::new()).map(drop)
}

/// Closes with unread bytes in the socket.
fn slam(mut stream: UnixStream) -> io::Result<()> {
    stream.read_exact(&mut [0])?;
    stream.write_all(b"!")
}

fn send_pattern(stream: &mut UnixStream, len: u64, chunk: u64, seed: u64) -> io::Result<u64> {
    let mut pattern = Pattern::new(seed);
    let mut digest = Digest::default();
    let mut buf = vec![0; chunk as usize];
    let mut left = len;
    while left > 0 {
        let n = left.min(chunk) as usize;
        pattern.fill(&mut buf[..n]);
        digest.update(&buf[..n]);
        stream.write_all(&buf[..n])?;
        left -= n as u64;
    }
    Ok(digest.finish().1)
}

/// Sends a pattern to an echo on the host and compares what comes back.
fn echo_client(stream: UnixStream, len: u64, chunk: u64, seed: u64) -> io::Result<()> {
    let mut writer = stream.try_clone()?;
    let sender = thread::spawn(move || -> io::Result<u64> {
        let sum = send_pattern(&mut writer, len, chunk, seed)?;
        writer.shutdown(Shutdown::Write)?;
        Ok(sum)
    });
    let mut digest = Digest::default();
    let mut reader = stream;
    let mut buf = vec![0; 64 * 1024];
    loop {
        let n = reader.read(&mut buf)?;
        if n == 0 {
            break;
        }
        digest.update(&buf[..n]);
    }
    let sent = sender.join().unwrap()?;
    let (got_len, got) = digest.finish();
    if (got_len, got) == (len, sent) {
        Ok(())
    } else {
        Err(io::Error::other(format!("sent {len} {sent:x}, got {got_len} {got:x}")))
    }
}

fn serve(port: u32, serve_one: fn(UnixStream) -> io::Result<()>) {
    let listener = Listener::new(port).expect("listen");
    thread::spawn(move || {
        loop {
            let stream = listener.accept().expect("accept");
            thread::spawn(move || {
                if let Err(error) = serve_one(stream) {
                    println!("port {port}: {error}");
                }
            });
        }
    });
}

/// Does one command.
fn command(line: &str) -> io::Result<String> {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or_default();
    let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
    let port = numbers.first().copied().unwrap_or_default() as u32;
    match name {
        // echo PORT LEN CHUNK SEED
        "echo" => {
            let stream = connect_to(HOST, port)?;
            echo_client(stream, numbers[1], numbers[2], numbers[3])?;
        }
        // many PORT COUNT LEN: all are open before the first byte is sent
        "many" => {
            let streams = (0..numbers[1]).map(|_| connect_to(HOST, port)).collect::<io::Result<Vec<_>>>()?;
            let workers: Vec<_> = streams
                .into_iter()
                .enumerate()
                .map(|(i, stream)| {
                    let len = numbers[2];
                    thread::spawn(move || echo_client(stream, len, 3000, i as u64))
                })
                .collect();
            for worker in workers {
                worker.join().unwrap()?;
            }
        }
        // connect CID PORT: only that
        "connect" => drop(connect_to(numbers[0] as u32, numbers[1] as u32)?),
        // send PORT LEN CHUNK: nothing but sending; answers with microseconds
        "send" => {
            let mut stream = connect_to(HOST, port)?;
            let buf = vec![0x5a; numbers[2] as usize];
            let start = Instant::now();
            let mut left = numbers[1];
            while left > 0 {
                let n = left.min(numbers[2]);
                stream.write_all(&buf[..n as usize])?;
                left -= n;
            }
            stream.shutdown(Shutdown::Write)?;
            stream.read_exact(&mut [0; 8])?;
            return Ok(format!("ok {}", start.elapsed().as_micros()));
        }
        // deaf PORT LEN: stops receiving, then sends
        "deaf" => {
            let mut stream = connect_to(HOST, port)?;
            stream.read_exact(&mut [0])?;
            stream.shutdown(Shutdown::Read)?;
            send_pattern(&mut stream, numbers[1], 4096, 7)?;
        }
        // hold PORT: stays until the other side ends; answers how
        "hold" => {
            let mut stream = connect_to(HOST, port)?;
            stream.write_all(b"here")?;
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest)?;
            return Ok(format!("end {}", rest.len()));
        }
        // push PORT: sends until it fails; answers with the error
        "push" => {
            let mut stream = connect_to(HOST, port)?;
            loop {
                stream.write_all(&[0; 1000])?;
            }
        }
        _ => return Err(io::Error::other("unknown command")),
    }
    Ok("ok".to_owned())
}

/// Serves one command channel, until it is lost.
fn obey(stream: UnixStream) -> io::Result<()> {
    let mut answers = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let answer = match command(&line) {
            Ok(answer) => answer,
            Err(error) => match error.raw_os_error() {
                Some(number) => format!("errno {number}"),
                None => format!("error {error}"),
            },
        };
        answers.write_all(format!("{answer}\n").as_bytes())?;
    }
    Ok(())
}

fn main() {
    serve(100, echo);
    serve(101, digest);
    serve(102, source);
    serve(103, slam);
    serve(104, sink);
    // A lost channel is opened again; the machine ends when nobody is there.
    loop {
        match connect_to(HOST, 1) {
            Ok(stream) => drop(obey(stream)),
            Err(error) => {
                println!("init: {error}");
                restart();
            }
        }
    }
}
