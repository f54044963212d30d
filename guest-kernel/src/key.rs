//! The name of a build: a hash of everything that decides its outcome, except the compiler.
//!
//! The compiler is left out on purpose: a cached kernel stays right when the machine's gcc is updated, and the manifest
//! records which one was used.

use crate::{Flavour, Identity};

/// Version of the builder's recipe. It goes up when the steps change in a way that changes the outcome for equal inputs.
pub const FORMAT: u32 = 1;

/// Content hash of a build's inputs, as 32 lower-case hexadecimal digits (128 bits of BLAKE3).
///
/// Inputs: [`FORMAT`], the flavour, its fragment and differences, forbidden list and patches, and the source's name, version and digest.
/// Equal keys mean equal inputs, on any machine.
pub fn inputs_key(flavour: Flavour, source: &Identity) -> String {
    let mut hasher = blake3::Hasher::new();
    // Each field carries its length: no two different lists of fields can run together into the same bytes.
    let mut field = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    field(b"hayfork guest kernel");
    field(&FORMAT.to_le_bytes());
    field(flavour.name().as_bytes());
    field(flavour.fragment().as_bytes());
    // Only where there are any: a kernel of the flavour without them keeps the key that it always had.
    if let Some(differences) = flavour.differences() {
        field(differences.as_bytes());
    }
    field(flavour.forbidden().as_bytes());
    for patch in flavour.patches() {
        field(patch.name.as_bytes());
        field(patch.text.as_bytes());
    }
    field(source.package.as_deref().unwrap_or("").as_bytes());
    field(source.version.as_bytes());
    field(source.digest.as_bytes());
    hasher.finalize().to_hex().as_str()[..32].to_owned()
}
