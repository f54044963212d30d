//! The search for a session's beginning: noise in front, in any pieces, must not hide it for good.
#![no_main]

use hayfork_protocol::HostHello;
use hayfork_protocol::handshake::{GuestPreamble, HostPreamble};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (step, noise) = input;
    let mut guest = GuestPreamble::new();
    for mut piece in noise.chunks(usize::from(step).max(1)) {
        while guest.receive(&mut piece).is_some() {}
    }
    // What noise looks like a preamble may hold back at most one hello, which zero bytes push out.
    let mut host = HostPreamble::new([0xa5; 16], &HostHello::new(1, [2; 32]));
    let mut bytes = vec![0; 4096];
    bytes.extend_from_slice(host.bytes());
    let mut rest = &bytes[..];
    let mut found = false;
    while let Some((nonce, _)) = guest.receive(&mut rest) {
        found |= nonce == [0xa5; 16];
    }
    assert!(found, "the preamble was not found behind {} bytes of noise", noise.len());

    let mut rest = noise;
    while let Ok(Some(_)) = host.receive(&mut rest) {}
});
