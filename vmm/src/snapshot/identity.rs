//! What a saved machine was made of and runs on: names with values, compared one by one.

use serde::{Deserialize, Serialize};

/// The most bytes of an identity in a file.
pub(super) const MAX_IDENTITY: u64 = 16 << 10;

/// Everything that must be the same where a machine goes on: version of hayfork, backend, kernel and other images by digest,
/// devices, processor, and, where a guest's time hangs on it, the boot of the host. Each part has a name for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    parts: Vec<(String, String)>,
}

impl Identity {
    /// An identity with the version of this crate.
    pub fn new(backend: &str) -> Self {
        Self::default().with("version of hayfork", env!("CARGO_PKG_VERSION")).with("backend", backend)
    }

    /// The same with one more part. A name that is there already gets the new value.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.parts.retain(|(known, _)| known != name);
        self.parts.push((name.to_owned(), value.into()));
        self
    }

    /// The value of a part.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.parts.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Names and values, in order.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The name of the first part that `other` has not, or has with another value; `None` if they are the same.
    pub fn difference<'a>(&'a self, other: &'a Self) -> Option<&'a str> {
        let lacks = |one: &'a Self, two: &Self| {
            one.parts().find(|(name, value)| two.get(name) != Some(value)).map(|(name, _)| name)
        };
        lacks(self, other).or_else(|| lacks(other, self))
    }

    /// A digest of all parts, 64 hexadecimal digits, whatever their order.
    pub fn digest(&self) -> String {
        let mut parts: Vec<_> = self.parts().collect();
        parts.sort_unstable();
        let mut hasher = blake3::Hasher::new_derive_key("hayfork 2026 identity of a snapshot");
        for text in parts.into_iter().flat_map(|(name, value)| [name, value]) {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// The present boot of the host, as Linux names it: another one after each start.
///
/// # Errors
/// The kernel does not say.
pub fn boot_id() -> std::io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned())
}
