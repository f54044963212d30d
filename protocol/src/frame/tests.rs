use super::*;
use proptest::prelude::*;

fn decode_all(bytes: &[u8], step: usize) -> Result<Vec<Frame>, FrameError> {
    let mut decoder = Decoder::new();
    let mut frames = Vec::new();
    for mut piece in bytes.chunks(step) {
        while let Some(frame) = decoder.next(&mut piece)? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn frame(kind: Kind, channel: Option<Channel>, stream: u32, payload: &[u8]) -> Frame {
    Frame { kind, channel, stream, payload: payload.to_vec() }
}

#[test]
fn frames_survive_every_cut() {
    let frames = [
        frame(Kind::Open, None, 1, b"request"),
        frame(Kind::Data, Some(Channel::Stdout), 1, &[0; 3000]),
        frame(Kind::Eof, Some(Channel::Stdout), 1, b""),
        frame(Kind::Credit, Some(Channel::File), 7, &[1, 2, 3, 4]),
        frame(Kind::Ping, None, 0, b"x"),
        frame(Kind::Close, None, u32::MAX, b""),
    ];
    let mut bytes = Vec::new();
    for f in &frames {
        encode(&mut bytes, f.kind, f.channel, f.stream, &f.payload);
    }
    for step in [1, 2, 3, 11, 12, 13, 4096] {
        assert_eq!(decode_all(&bytes, step).unwrap(), frames, "pieces of {step}");
    }
}

#[test]
fn zero_bytes_are_never_a_frame() {
    assert_eq!(decode_all(&[0; 64], 64), Err(FrameError::UnknownKind(0)));
}

#[test]
fn bad_headers_are_refused_before_their_payload_is_stored() {
    let header = |length: u32, kind: u8, channel: u8, reserved: u8, stream: u32| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([kind, channel, reserved, 0]);
        bytes.extend(stream.to_le_bytes());
        bytes
    };
    let refused = |bytes: Vec<u8>| decode_all(&bytes, 64).unwrap_err();
    assert_eq!(refused(header(0, 10, 0, 0, 1)), FrameError::UnknownKind(10));
    assert_eq!(refused(header(0, 6, 0, 1, 1)), FrameError::Reserved(1));
    assert_eq!(refused(header(1, 3, 0, 0, 1)), FrameError::BadChannel { kind: Kind::Data, channel: 0 });
    assert_eq!(refused(header(1, 1, 2, 0, 1)), FrameError::BadChannel { kind: Kind::Open, channel: 2 });
    assert_eq!(refused(header(1, 3, 9, 0, 1)), FrameError::BadChannel { kind: Kind::Data, channel: 9 });
    assert_eq!(refused(header(0, 1, 0, 0, 0)), FrameError::BadStream { kind: Kind::Open, stream: 0 });
    assert_eq!(refused(header(0, 8, 0, 0, 3)), FrameError::BadStream { kind: Kind::Ping, stream: 3 });
    assert_eq!(
        refused(header(65_537, 3, 2, 0, 1)),
        FrameError::TooLong { kind: Kind::Data, length: 65_537, limit: MAX_DATA }
    );
    assert_eq!(
        refused(header(u32::MAX, 1, 0, 0, 1)),
        FrameError::TooLong { kind: Kind::Open, length: u32::MAX, limit: MAX_CONTROL }
    );
    assert_eq!(refused(header(3, 5, 2, 0, 1)), FrameError::BadCredit(3));
}

#[test]
fn a_long_payload_is_stored_only_as_it_arrives() {
    let mut bytes = Vec::new();
    encode(&mut bytes, Kind::Open, None, 1, &vec![1; MAX_CONTROL]);
    let mut decoder = Decoder::new();
    assert_eq!(decoder.next(&mut &bytes[..HEADER + 10]), Ok(None));
    assert!(decoder.payload.capacity() < 4096);
    assert!(!decoder.at_boundary());
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096), step in 1usize..64) {
        let _ = decode_all(&bytes, step);
    }
}
