//! Image sets: the kernel, the initramfs and the root images that a guest is made of.
//!
//! A *set* is one directory that holds a kernel (`vmlinux`; on some hosts `vmlinux-pvm` beside it), an initramfs with the guest agent, one
//! EROFS root image for each language, and a `manifest.json` that names them with their sizes and
//! digests. `cargo xtask images` builds sets into the user's cache; an installed image package
//! carries one. Nothing in a set is ever changed in place, so an open set stays valid while a newer
//! one is built beside it.
//!
//! - [`manifest`]: the file format, the one definition for builder and engine;
//! - [`locate`]: where a set is looked for, and in which order;
//! - [`ImageSet`]: an opened set. Sizes are compared with the manifest whenever a file is asked for
//!   (one `stat` call), digests only by [`ImageSet::verify`], which reads every byte.

pub mod locate;
pub mod manifest;
mod set;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

pub use locate::Lookup;
pub use manifest::SetManifest;
pub use set::ImageSet;

/// Why an image set, or a part of it, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImagesError {
    /// No place that is searched holds a set.
    #[error(
        "no guest images found (looked in {}); run `make images` in a clone of hayfork, install the \
         image package, or name a directory in {}",
        list(searched),
        locate::ENVIRONMENT
    )]
    NotFound {
        /// The directories that were looked at, in order.
        searched: Vec<PathBuf>,
    },
    /// A directory that was named outright (by argument or environment) is not a set.
    #[error(
        "{} ({origin}) is not a set of guest images: it has no {}; name a directory made by \
         `make images`, or leave the choice to hayfork",
        directory.display(), manifest::FILE_NAME
    )]
    NotASet {
        /// The directory that was named.
        directory: PathBuf,
        /// Who named it, for instance "from HAYFORK_IMAGES_DIR".
        origin: &'static str,
    },
    /// The manifest cannot be read or understood.
    #[error("the manifest {} cannot be used: {reason}; build the set again by `make images`", path.display())]
    BadManifest {
        /// The manifest's path.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The set was written in a format that this version does not know.
    #[error(
        "the guest images in {} have format {found}, this version of hayfork reads format {}; run \
         `make images`, or install the image package of the same version",
        directory.display(), manifest::FORMAT
    )]
    WrongFormat {
        /// The set's directory.
        directory: PathBuf,
        /// The format number in its manifest.
        found: u64,
    },
    /// The set holds no root image for the language.
    #[error(
        "there is no image for language {language:?} in {}; it has {}",
        directory.display(),
        if available.is_empty() { "none".to_owned() } else { available.join(", ") }
    )]
    MissingLanguage {
        /// The language asked for.
        language: String,
        /// The set's directory.
        directory: PathBuf,
        /// The languages that the set does hold, sorted.
        available: Vec<String>,
    },
    /// The set holds no kernel of the flavour that the backend needs.
    #[error(
        "there is no guest kernel of flavour {flavour:?} in {}; run `cargo xtask images --flavour {flavour}`",
        directory.display()
    )]
    MissingKernel {
        /// The flavour asked for.
        flavour: &'static str,
        /// The set's directory.
        directory: PathBuf,
    },
    /// A file of the set cannot be read.
    #[error("the guest image file {} cannot be read: {source}; run `make images` again", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file does not have the size that the manifest says.
    #[error(
        "the guest image file {} is damaged: it has {found} bytes instead of {expected}; remove the \
         set and run `make images` again",
        path.display()
    )]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Bytes according to the manifest.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A file does not have the digest that the manifest says (found by [`ImageSet::verify`]).
    #[error(
        "the guest image file {} is damaged: its BLAKE3 digest is {found} instead of {expected}; \
         remove the set and run `make images` again",
        path.display()
    )]
    WrongDigest {
        /// The file.
        path: PathBuf,
        /// Digest according to the manifest, 64 hexadecimal digits.
        expected: String,
        /// Digest found.
        found: String,
    },
}

/// Paths joined for a message.
fn list(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    if shown.is_empty() { "no directory".to_owned() } else { shown.join(", ") }
}
