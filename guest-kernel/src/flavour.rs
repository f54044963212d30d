//! What kinds of guest kernel there are: the texts and patches that make each one.

use serde::{Deserialize, Serialize};

/// A change to the kernel source, in `patch -p1` form with its reason above the first hunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patch {
    /// File name, which also gives the order.
    pub name: &'static str,
    /// The whole patch file.
    pub text: &'static str,
}

/// Kinds of guest kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Flavour {
    /// Runs on hardware virtualisation and under emulation alike.
    #[default]
    Plain,
}

impl Flavour {
    /// The name used in manifests and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
        }
    }

    /// The configuration fragment: one `CONFIG_X=value` or `# CONFIG_X is not set` a line, and comments.
    pub fn fragment(self) -> &'static str {
        match self {
            Self::Plain => include_str!("../config/hayfork.config"),
        }
    }

    /// The options that must stay out: one `CONFIG_X` a line, and comments.
    pub fn forbidden(self) -> &'static str {
        match self {
            Self::Plain => include_str!("../config/forbidden"),
        }
    }

    /// The patches, in the order in which they are applied.
    pub fn patches(self) -> &'static [Patch] {
        match self {
            Self::Plain => PLAIN_PATCHES,
        }
    }
}

const PLAIN_PATCHES: &[Patch] = &[
    Patch {
        name: "0001-lapic-timer-frequency.patch",
        text: include_str!("../patches/0001-lapic-timer-frequency.patch"),
    },
    Patch {
        name: "0002-no-init-memory-poison.patch",
        text: include_str!("../patches/0002-no-init-memory-poison.patch"),
    },
];
