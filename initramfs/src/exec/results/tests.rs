use super::*;
use hayfork_protocol::{Incoming, Mux, Request, Role};
use rustix::pipe::{PipeFlags, pipe_with};

const TOKEN: &str = "00112233445566778899aabbccddeeff";

/// Feeds bytes through a pipe and returns what the host sees: events, and the bytes of the bundle channel.
fn run(input: &[u8]) -> (Vec<Event>, Vec<u8>, bool) {
    let (read, write) = pipe_with(PipeFlags::NONBLOCK).unwrap();
    let (mut host, mut guest) = (Mux::new(Role::Host), Mux::new(Role::Guest));
    let stream = host.open(&Request::Stats).unwrap();
    let wire = host.output().to_vec();
    guest.receive(&mut &wire[..]).unwrap();
    host.advance(wire.len());
    let mut results = Results::new(Source::new(read), TOKEN.to_owned());
    let mut input = input;
    let (mut events, mut bytes) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 1000];
    let mut write = Some(write);
    loop {
        match &write {
            Some(fd) if input.is_empty() => {
                let _ = fd;
                write = None;
            }
            Some(fd) => {
                let n = rustix::io::write(fd, &input[..input.len().min(700)]).unwrap_or(0);
                input = &input[n..];
            }
            None => {}
        }
        results.wake();
        let progress = results.pump(&mut Outlet::new(Some(&mut guest), Some(stream)), &mut buffer);
        let wire = guest.output().to_vec();
        guest.advance(wire.len());
        let mut from_guest = &wire[..];
        while let Some(incoming) = host.receive(&mut from_guest).unwrap() {
            match incoming {
                Incoming::Event(_, event) => events.push(event),
                Incoming::Data(_, Channel::Bundle, data) => {
                    host.consumed(stream, Channel::Bundle, data.len());
                    bytes.extend(data);
                }
                other => panic!("{other:?}"),
            }
        }
        let wire = host.output().to_vec();
        host.advance(wire.len());
        let mut from_host = &wire[..];
        while guest.receive(&mut from_host).unwrap().is_some() {}
        assert!(results.header.len() <= MAX_HEADER);
        if write.is_none() && progress == Progress::Empty {
            return (events, bytes, results.is_within_bundle());
        }
    }
}

fn header(kind: &str, parts: &str) -> Vec<u8> {
    format!("{{\"token\":\"{TOKEN}\",\"kind\":\"{kind}\",\"parts\":{parts}}}\n").into_bytes()
}

fn bundle(kind: BundleKind, parts: &[(&str, u32)]) -> Event {
    Event::Bundle {
        kind,
        parts: parts.iter().map(|(mime, bytes)| Part { mime: (*mime).to_owned(), bytes: *bytes }).collect(),
    }
}

#[test]
fn records_pass_with_their_parts() {
    let big = vec![b'\n'; 600_000];
    let input = [
        &header("result", r#"[["text/plain",5],["image/png",600000]]"#)[..],
        b"hello",
        &big,
        &header("display", r#"[["text/html",2]]"#),
        b"ok",
        &header("display", "[]"),
    ]
    .concat();
    let (events, bytes, within) = run(&input);
    assert_eq!(
        events,
        [
            bundle(BundleKind::Result, &[("text/plain", 5), ("image/png", 600_000)]),
            bundle(BundleKind::Display, &[("text/html", 2)]),
            bundle(BundleKind::Display, &[]),
        ]
    );
    assert_eq!(bytes, [b"hello", &big[..], b"ok"].concat());
    assert!(!within);
}

#[test]
fn an_exception_passes_with_its_strings_cut() {
    let long = "é".repeat(MAX_STRING);
    let line = format!(
        "{{\"token\":\"{TOKEN}\",\"kind\":\"error\",\"name\":\"ValueError\",\"value\":\"a\\nb\",\"traceback\":\"{long}\"}}\n"
    );
    let (events, _, _) = run(line.as_bytes());
    let [Event::Exception(exception)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((exception.name.as_str(), exception.value.as_str()), ("ValueError", "a\nb"));
    assert_eq!(exception.traceback.len(), MAX_STRING);
}

#[test]
fn garbage_is_skipped_and_what_follows_counts() {
    let good = [&header("display", r#"[["text/plain",1]]"#)[..], b"x"].concat();
    let other = header("display", r#"[["text/plain",1]]"#);
    let other = String::from_utf8(other).unwrap().replace(TOKEN, &"f".repeat(32));
    let garbage: [&[u8]; 9] = [
        b"\n\n\n",
        b"not json\n",
        b"\xff\xfe\x00\n",
        b"[1,2]\n",
        other.as_bytes(),
        &header("nonsense", "[]"),
        &header("display", r#"[["text/plain",99999999]]"#),
        &header("display", r#"[["text/plain",4294967295],["text/plain",4294967295]]"#),
        &header("display", r#"[["text/pl\u0000ain",1]]"#),
    ];
    for junk in garbage {
        let (events, bytes, within) = run(&[junk, &good].concat());
        let shown = String::from_utf8_lossy(junk).into_owned();
        assert_eq!(events, [bundle(BundleKind::Display, &[("text/plain", 1)])], "{shown}");
        assert_eq!((bytes.as_slice(), within), (&b"x"[..], false), "{shown}");
    }
    let endless = vec![b'{'; 2_000_000];
    let (events, bytes, _) = run(&[&endless[..], b"\n", &good].concat());
    assert_eq!((events.len(), bytes.as_slice()), (1, &b"x"[..]));
}

#[test]
fn deep_nesting_is_refused() {
    let deep = format!("{{\"token\":\"{TOKEN}\",\"kind\":\"display\",\"x\":{}\n", "[".repeat(300_000));
    assert_eq!(run(deep.as_bytes()).0, []);
}

#[test]
fn too_many_parts_and_records_are_dropped() {
    let parts: Vec<String> = (0..=MAX_BUNDLE_PARTS).map(|_| r#"["a/b",0]"#.to_owned()).collect();
    assert_eq!(run(&header("display", &format!("[{}]", parts.join(",")))).0, []);
    let flood = header("display", "[]").repeat(MAX_RECORDS as usize + 5);
    assert_eq!(run(&flood).0.len(), MAX_RECORDS as usize);
}

#[test]
fn a_cut_record_is_known() {
    let (events, bytes, within) = run(&[&header("result", r#"[["text/plain",10]]"#)[..], b"half"].concat());
    assert_eq!(events.len(), 1);
    assert_eq!(bytes, b"half");
    assert!(within);
}
