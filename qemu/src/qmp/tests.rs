//! The test plays QEMU.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::thread;

use super::*;

const GREETING: &str =
    r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}, "capabilities": ["oob"]}}"#;

/// A conversation in which QEMU says `lines`, the first before it is asked anything, then one (which may be several) for each
/// command; and what it was told.
fn with(
    lines: &'static [&'static str],
    test: impl FnOnce(&mut Qmp) -> Result<Value, QmpError>,
) -> (Result<Value, QmpError>, Vec<String>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let qemu = thread::spawn(move || {
        let mut commands = BufReader::new(theirs.try_clone().unwrap()).lines();
        let mut told = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            if at > 0 {
                match commands.next() {
                    Some(Ok(command)) => told.push(command),
                    _ => return told,
                }
            }
            if (&theirs).write_all(format!("{line}\r\n").as_bytes()).is_err() {
                return told;
            }
        }
        told
    });
    let mut qmp = Qmp::new(ours).unwrap();
    let result = test(&mut qmp);
    drop(qmp);
    (result, qemu.join().unwrap())
}

#[test]
fn commands_are_answered_in_their_order_and_events_wait() {
    let (result, told) = with(
        &[
            GREETING,
            r#"{"return": {}}"#,
            "{\"timestamp\": {}, \"event\": \"STOP\"}\n{\"return\": {}}",
            r#"{"return": {"status": "paused"}}"#,
        ],
        |qmp| {
            qmp.send("stop", &json!({}), None)?;
            let answer = qmp.execute("query-status", &json!({}), None)?;
            qmp.wait_for("STOP")?;
            Ok(answer)
        },
    );
    assert_eq!(result.unwrap(), json!({"status": "paused"}));
    assert_eq!(told.len(), 3);
    assert!(told[0].contains("qmp_capabilities") && told[1].contains(r#""execute":"stop""#), "{told:?}");
}

#[test]
fn a_refusal_says_why() {
    let (result, _) = with(
        &[
            GREETING,
            r#"{"return": {}}"#,
            r#"{"error": {"class": "CommandNotFound", "desc": "no such thing"}}"#,
        ],
        |qmp| qmp.execute("stop", &json!({}), None),
    );
    let error = result.unwrap_err();
    assert_eq!(error.to_string(), "QEMU refused \"stop\": no such thing");
}

#[test]
fn an_end_and_nonsense_are_told_apart() {
    let (result, _) = with(&[GREETING, r#"{"return": {}}"#], |qmp| qmp.execute("stop", &json!({}), None));
    assert!(matches!(result, Err(QmpError::Closed)), "{result:?}");
    for nonsense in ["hello", "[]", "{}", "{\"return\": ", "\u{0}"] {
        let lines: &'static [&'static str] =
            Box::leak(Box::new([GREETING, &*Box::leak(nonsense.to_owned().into_boxed_str())]));
        let (result, _) = with(lines, |qmp| qmp.execute("stop", &json!({}), None));
        assert!(matches!(result, Err(QmpError::Malformed(_) | QmpError::Closed)), "{nonsense}: {result:?}");
    }
}

#[test]
fn a_line_without_end_is_not_kept() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let writer = thread::spawn(move || {
        let piece = [b'x'; 4096];
        let mut sent = 0;
        while (&theirs).write(&piece).is_ok() {
            sent += piece.len();
        }
        sent
    });
    let mut qmp = Qmp::new(ours).unwrap();
    assert!(matches!(qmp.execute("stop", &json!({}), None), Err(QmpError::Malformed(_))));
    assert!(qmp.input.len() <= MAX_LINE + 4096);
    drop(qmp);
    writer.join().unwrap();
}

#[test]
fn events_that_nobody_waits_for_are_bounded() {
    let flood = format!("{}{{\"return\": 1}}", "{\"event\": \"RTC_CHANGE\"}\n".repeat(1000));
    let lines: &'static [&'static str] =
        Box::leak(Box::new([GREETING, r#"{"return": {}}"#, &*Box::leak(flood.into_boxed_str())]));
    let (result, _) = with(lines, |qmp| {
        let answer = qmp.execute("stop", &json!({}), None);
        assert_eq!(qmp.events.len(), MAX_EVENTS);
        answer
    });
    assert_eq!(result.unwrap(), json!(1));
}

#[test]
fn a_descriptor_goes_with_its_command() {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (mut end, sent) = UnixStream::pair().unwrap();
    let mut qmp = Qmp::new(ours).unwrap();
    qmp.send("getfd", &json!({ "fdname": "x" }), Some(sent.as_fd())).unwrap();
    drop(sent);
    let mut text = String::new();
    let mut got = Vec::new();
    while !text.ends_with("}\n") || !text.contains("getfd") {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [0; 4096];
        let count =
            recvmsg(&theirs, &mut [io::IoSliceMut::new(&mut buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
                .unwrap()
                .bytes;
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                got.extend(descriptors);
            }
        }
    }
    assert_eq!(got.len(), 1);
    UnixStream::from(got.remove(0)).write_all(b"it is").unwrap();
    let mut line = String::new();
    BufReader::new(&mut end).read_line(&mut line).unwrap();
    assert_eq!(line, "it is");
}

/// A QEMU that says this for ever, until nobody listens.
fn chatter(line: &'static str) -> (Qmp, thread::JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let qemu = thread::spawn(move || {
        let lines = line.repeat(100);
        while (&theirs).write_all(lines.as_bytes()).is_ok() {}
    });
    let mut qmp = Qmp::new(ours).unwrap();
    qmp.patience = Duration::from_millis(200);
    (qmp, qemu)
}

#[test]
fn who_talks_for_ever_and_does_not_answer_is_late() {
    for line in ["{\"event\": \"RTC_CHANGE\"}\n", "{\"QMP\": {}}\n"] {
        let (mut qmp, qemu) = chatter(line);
        let start = Instant::now();
        let result = qmp.execute("stop", &json!({}), None);
        assert!(matches!(result, Err(QmpError::Late(_))), "{line}: {result:?}");
        drop(qmp);
        let (mut qmp, other) = chatter(line);
        let result = qmp.wait_for("RESUME");
        assert!(matches!(result, Err(QmpError::Late(_) | QmpError::Malformed(_))), "{line}: {result:?}");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        drop(qmp);
        qemu.join().unwrap();
        other.join().unwrap();
    }
}

#[test]
fn nothing_is_believed_or_told_after_nonsense() {
    let (result, told) = with(
        &[
            GREETING,
            "nonsense\n{\"return\": {}}\n{\"return\": {}}\n{\"event\": \"RESUME\"}",
            "{\"return\": {}}",
        ],
        |qmp| {
            let first = qmp.execute("stop", &json!({}), None);
            assert!(matches!(first, Err(QmpError::Malformed("qmp_capabilities"))), "{first:?}");
            assert!(qmp.is_broken());
            for _ in 0..2 {
                assert!(matches!(qmp.wait_for("RESUME"), Err(QmpError::Malformed("RESUME"))));
                assert!(matches!(qmp.send("cont", &json!({}), None), Err(QmpError::Malformed("cont"))));
            }
            qmp.execute("cont", &json!({}), None)
        },
    );
    assert!(matches!(result, Err(QmpError::Malformed("cont"))), "{result:?}");
    assert!(!told.iter().any(|command| command.contains("cont")), "{told:?}");
}
