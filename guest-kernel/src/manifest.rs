//! What was built, from what, with what: the file that lies beside each vmlinux.

use serde::{Deserialize, Serialize};

use crate::{Flavour, Identity};

/// `manifest.json` of a built kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`](crate::FORMAT) of the builder that wrote this.
    pub format: u32,
    /// Kind of kernel.
    pub flavour: Flavour,
    /// [`inputs_key`](crate::inputs_key) of this build.
    pub inputs_key: String,
    /// Where the source came from.
    pub source: Identity,
    /// Names of the patches applied, in order.
    pub patches: Vec<String>,
    /// BLAKE3 of the final configuration, 64 hexadecimal digits.
    pub config_blake3: String,
    /// First line of `gcc --version`.
    pub compiler: String,
    /// File name of the kernel, beside this file.
    pub file: String,
    /// BLAKE3 of the kernel file, 64 hexadecimal digits.
    pub blake3: String,
    /// Size of the kernel file in bytes.
    pub bytes: u64,
}

impl Manifest {
    /// The source in one line, for people: `linux-source-6.12 6.12.117-1`, or `tree 6.12.117`.
    pub fn source_line(&self) -> String {
        format!("{} {}", self.source.package.as_deref().unwrap_or("tree"), self.source.version)
    }
}
