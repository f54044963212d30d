use super::*;
use proptest::prelude::*;

fn host_hello() -> HostHello {
    HostHello::new(1_700_000_000_000_000_000, [7; 32])
}

fn guest_hello() -> GuestHello {
    GuestHello {
        version: VERSION,
        agent: "0.1.0".into(),
        uptime_ns: 5,
        languages: vec!["python".into()],
        memory_bytes: 1 << 28,
    }
}

fn feed_guest(guest: &mut GuestPreamble, bytes: &[u8], step: usize) -> Option<([u8; 16], HostHello, usize)> {
    let mut used = 0;
    for piece in bytes.chunks(step) {
        let mut input = piece;
        if let Some((nonce, hello)) = guest.receive(&mut input) {
            return Some((nonce, hello, used + piece.len() - input.len()));
        }
        used += piece.len();
    }
    None
}

#[test]
fn both_sides_meet_whatever_the_pieces() {
    for step in 1..40 {
        let mut host = HostPreamble::new([9; 16], &host_hello());
        let mut guest = GuestPreamble::new();
        let mut sent = host.bytes().to_vec();
        let length = sent.len();
        sent.extend_from_slice(b"first frame");
        let (nonce, hello, used) = feed_guest(&mut guest, &sent, step).unwrap();
        assert_eq!((nonce, hello, used), ([9; 16], host_hello(), length));

        let answer = GuestPreamble::answer(&nonce, &guest_hello());
        let mut got = None;
        for mut piece in answer.chunks(step) {
            got = got.or(host.receive(&mut piece).unwrap());
        }
        assert_eq!(got, Some(guest_hello()));
    }
}

#[test]
fn an_answer_to_an_earlier_host_is_passed_over() {
    let mut host = HostPreamble::new([2; 16], &host_hello());
    let mut bytes = b"half a frame of the last session \xff\xffhay".to_vec();
    bytes.extend(GuestPreamble::answer(&[1; 16], &guest_hello()));
    bytes.extend(b"more of it");
    bytes.extend(GuestPreamble::answer(&[2; 16], &guest_hello()));
    bytes.extend(b"frame");
    let mut input = &bytes[..];
    assert_eq!(host.receive(&mut input).unwrap(), Some(guest_hello()));
    assert_eq!(input, b"frame");
}

#[test]
fn a_preamble_cut_off_by_a_new_one_does_not_hide_it() {
    let whole = HostPreamble::new([3; 16], &host_hello());
    for cut in 1..whole.bytes().len() {
        let mut bytes = whole.bytes()[..cut].to_vec();
        let retry = HostPreamble::new([4; 16], &host_hello()).retry_bytes();
        bytes.extend(retry);
        let found = feed_guest(&mut GuestPreamble::new(), &bytes, 4096).unwrap();
        assert_eq!(found.0, [4; 16], "cut at {cut}");
    }
}

#[test]
fn a_guest_of_another_version_is_an_error_that_says_what_to_do() {
    let mut host = HostPreamble::new([2; 16], &host_hello());
    let answer = GuestPreamble::answer(&[2; 16], &GuestHello { version: 0, ..guest_hello() });
    let error = host.receive(&mut &answer[..]).unwrap_err();
    assert!(error.to_string().contains("rebuild or reinstall the images"), "{error}");
}

#[test]
fn versions_are_chosen_from_the_common_range() {
    let offer = |version, min_version| HostHello { version, min_version, ..host_hello() };
    assert_eq!(choose_version(&offer(VERSION, MIN_VERSION)), VERSION);
    assert_eq!(choose_version(&offer(VERSION + 5, MIN_VERSION)), VERSION);
    assert_eq!(choose_version(&offer(VERSION + 5, VERSION + 1)), 0);
    assert_eq!(choose_version(&offer(MIN_VERSION - 1, 0)), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn noise_never_hides_the_next_preamble(noise in proptest::collection::vec(any::<u8>(), 0..300), step in 100usize..5000) {
        let host = HostPreamble::new([8; 16], &host_hello());
        let mut bytes = noise;
        bytes.extend(host.retry_bytes());
        let found = feed_guest(&mut GuestPreamble::new(), &bytes, step);
        prop_assert_eq!(found.map(|f| f.0), Some([8; 16]));
    }
}
