//! Bytes that both sides can make for themselves, and a digest of them. Shared by guest and host.

/// An endless stream of bytes that depends on `seed`.
pub(crate) struct Pattern {
    seed: u64,
    at: u64,
}

impl Pattern {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, at: 0 }
    }

    /// Fills `buf` with the next bytes.
    pub(crate) fn fill(&mut self, buf: &mut [u8]) {
        let mut word = self.word().to_le_bytes();
        for byte in buf {
            *byte = word[(self.at % 8) as usize];
            self.at += 1;
            if self.at.is_multiple_of(8) {
                word = self.word().to_le_bytes();
            }
        }
    }

    fn word(&self) -> u64 {
        let x = ((self.at / 8) ^ (self.seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}

/// A digest that depends on every byte and its place; not a cryptographic one.
#[derive(Default)]
pub(crate) struct Digest {
    state: u64,
    word: u64,
    len: u64,
}

impl Digest {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.word = (self.word << 8) | u64::from(byte);
            self.len += 1;
            if self.len.is_multiple_of(8) {
                self.mix();
            }
        }
    }

    fn mix(&mut self) {
        self.state = (self.state ^ self.word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        self.word = 0;
    }

    /// Length and digest of all bytes so far.
    pub(crate) fn finish(mut self) -> (u64, u64) {
        self.word = (self.word << 8) | 1;
        self.mix();
        (self.len, self.state ^ self.len)
    }
}
