//! The manifest of an image set: what its files are, how long, and with which digest.
//!
//! ```json
//! {"format": 1, "version": "0.1.0",
//!  "kernel":    {"file": "vmlinux", "blake3": "…", "bytes": 9123456, "source": "linux-source-6.12 6.12.1-1"},
//!  "kernels":   {"pvm": {"file": "vmlinux-pvm", "blake3": "…", "bytes": 9123456, "source": "linux-source-6.12 6.12.1-1"}},
//!  "initramfs": {"file": "initramfs.cpio", "blake3": "…", "bytes": 1234567, "source": "hayfork-agent 0.1.0"},
//!  "images": {"python": {"file": "python.erofs", "blake3": "…", "bytes": 47628288,
//!                        "contents": "python.contents.txt"}}}
//! ```
//!
//! `kernel` is the plain one, which every set has; `kernels` are further flavours by name, in sets that have some.
//!
//! File names are plain names inside the set's directory: a name with a directory part is refused,
//! so a manifest cannot point outside its set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The format number that this version writes and reads.
pub const FORMAT: u64 = 1;

/// Name of the manifest in a set's directory.
pub const FILE_NAME: &str = "manifest.json";

/// The longest manifest that is read, in bytes; a real one has about one thousand.
pub const MAX_BYTES: u64 = 1 << 20;

/// A whole set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetManifest {
    /// Format number, [`FORMAT`].
    pub format: u64,
    /// Version of hayfork that built the set.
    pub version: String,
    /// The guest kernel, an uncompressed ELF `vmlinux`.
    pub kernel: Part,
    /// Kernels of other flavours than `plain`, by flavour. Only sets made on certain hosts have one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kernels: BTreeMap<String, Part>,
    /// The initramfs, an uncompressed newc archive that holds the agent and the language drivers.
    pub initramfs: Part,
    /// The root images by language.
    pub images: BTreeMap<String, Image>,
}

/// A file of the set that is there once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Name inside the set's directory.
    pub file: String,
    /// BLAKE3 digest, 64 hexadecimal digits.
    pub blake3: String,
    /// Length in bytes.
    pub bytes: u64,
    /// What it was made from, for people: name and version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}

/// The root image of one language.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Name of the EROFS file inside the set's directory.
    pub file: String,
    /// BLAKE3 digest, 64 hexadecimal digits.
    pub blake3: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Name of the list of contents (packages and files), if the set carries one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub contents: String,
}

/// Why the text is no manifest of ours.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The format number is another one.
    #[error("format {0} instead of {FORMAT}")]
    Format(u64),
    /// Not JSON, or fields missing or of a wrong type.
    #[error("{0}")]
    Json(String),
    /// A file name that is not a plain name.
    #[error("{0:?} is not a plain file name")]
    FileName(String),
    /// A digest that is not 64 lower-case hexadecimal digits.
    #[error("{digest:?} is no digest of {file:?}")]
    Digest {
        /// The file that the digest is for.
        file: String,
        /// The text found.
        digest: String,
    },
}

impl SetManifest {
    /// Reads a manifest. The format number is looked at first, so that a later format, whatever its
    /// fields, is reported as such.
    ///
    /// # Errors
    /// [`ParseError`] as described there.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        #[derive(Deserialize)]
        struct Format {
            format: u64,
        }
        let Format { format } =
            serde_json::from_str(text).map_err(|error| ParseError::Json(error.to_string()))?;
        if format != FORMAT {
            return Err(ParseError::Format(format));
        }
        let manifest: Self =
            serde_json::from_str(text).map_err(|error| ParseError::Json(error.to_string()))?;
        for (file, digest, _) in manifest.files() {
            check_name(file)?;
            if digest.len() != 64 || !digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                return Err(ParseError::Digest { file: file.to_owned(), digest: digest.to_owned() });
            }
        }
        for image in manifest.images.values().filter(|image| !image.contents.is_empty()) {
            check_name(&image.contents)?;
        }
        Ok(manifest)
    }

    /// The manifest as text: indented, one trailing newline, the same bytes for the same values.
    ///
    /// # Errors
    /// Never in practice; the serialiser's signature demands it.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }

    /// Every file with digest and length in bytes: kernel, initramfs, other kernels by flavour, then images by language.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let parts = [&self.kernel, &self.initramfs].into_iter().chain(self.kernels.values());
        parts.map(|part| (part.file.as_str(), part.blake3.as_str(), part.bytes)).chain(
            self.images.values().map(|image| (image.file.as_str(), image.blake3.as_str(), image.bytes)),
        )
    }
}

/// Accepts `vmlinux`, refuses ``, `.`, `..`, `a/b` and names with control characters.
fn check_name(name: &str) -> Result<(), ParseError> {
    let plain = !name.is_empty()
        && name != "."
        && name != ".."
        && name.chars().all(|character| character != '/' && !character.is_control());
    if plain { Ok(()) } else { Err(ParseError::FileName(name.to_owned())) }
}
