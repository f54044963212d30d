//! Text out of byte streams.

/// Decodes UTF-8 that arrives in pieces, cut anywhere.
///
/// What is decoded in pieces is exactly what [`String::from_utf8_lossy`] makes of the whole: a character that a cut
/// divides is put together again, and only bytes that are really invalid become U+FFFD.
///
/// ```
/// let mut decoder = hayfork_sandbox::text::Utf8Decoder::new();
/// let euro = "€".as_bytes();
/// assert_eq!(decoder.push(&euro[..1]), "");
/// assert_eq!(decoder.push(&euro[1..]), "€");
/// assert_eq!(decoder.push(b"\xe2"), "");
/// assert_eq!(decoder.finish(), "\u{fffd}");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Utf8Decoder {
    /// The beginning of a character whose end has not arrived; at most 3 bytes.
    held: Vec<u8>,
}

impl Utf8Decoder {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes the next piece. Up to three bytes at its end are held back until the next one shows what they are.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let joined;
        let bytes = if self.held.is_empty() {
            bytes
        } else {
            self.held.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.held);
            &joined
        };
        let mut text = String::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && is_beginning(invalid) {
                self.held = invalid.to_vec();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }

    /// Ends the stream: a character that never came whole becomes one U+FFFD. The decoder can be used anew afterwards.
    pub fn finish(&mut self) -> String {
        if std::mem::take(&mut self.held).is_empty() {
            String::new()
        } else {
            char::REPLACEMENT_CHARACTER.to_string()
        }
    }
}

/// Whether more bytes could make a character of these.
fn is_beginning(bytes: &[u8]) -> bool {
    !bytes.is_empty() && matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn in_pieces(bytes: &[u8], size: usize) -> String {
        let mut decoder = Utf8Decoder::new();
        let mut text: String = bytes.chunks(size).map(|piece| decoder.push(piece)).collect();
        text.push_str(&decoder.finish());
        text
    }

    proptest! {
        #[test]
        fn text_cut_anywhere_is_the_same_text(text in "[a€ß𐍈\u{fffd}é]{0,200}", size in 1usize..7) {
            prop_assert_eq!(in_pieces(text.as_bytes(), size), text);
        }

        #[test]
        fn any_bytes_decode_as_in_one_piece(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0xe0u8..=0xf4, 0x80u8..=0xbf], 0..100),
            size in 1usize..7,
        ) {
            prop_assert_eq!(in_pieces(&bytes, size), String::from_utf8_lossy(&bytes));
        }
    }
}
