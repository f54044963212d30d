//! What kinds of guest kernel there are: the texts and patches that make each one.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::fragment::{ParseError, Setting, parse_fragment};

/// A change to the kernel source, in `patch -p1` form with its reason above the first hunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patch {
    /// File name below `patches/`; the order in which patches are applied is that of their names.
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
    /// Runs on kvm_pvm and nowhere else, with its kernel mode at hardware CPL3. A program in such a guest can read and
    /// write the guest's kernel: the virtual machine is the only wall.
    Pvm,
}

impl Flavour {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Plain, Self::Pvm];

    /// The name used in manifests and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Pvm => "pvm",
        }
    }

    /// The configuration fragment that all flavours start from: one `CONFIG_X=value` or `# CONFIG_X is not set` a line,
    /// and comments.
    pub fn fragment(self) -> &'static str {
        match self {
            Self::Plain | Self::Pvm => include_str!("../config/hayfork.config"),
        }
    }

    /// What this flavour's configuration has otherwise than [`Flavour::fragment`] says, in the same form.
    pub fn differences(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Pvm => Some(include_str!("../config/pvm.config")),
        }
    }

    /// The fragment with the differences in it, by symbol.
    ///
    /// # Errors
    /// A line of either text cannot be meant.
    pub fn settings(self) -> Result<BTreeMap<String, Setting>, ParseError> {
        let mut settings = parse_fragment(self.fragment())?;
        settings.extend(parse_fragment(self.differences().unwrap_or(""))?);
        Ok(settings)
    }

    /// The options that must stay out: one `CONFIG_X` a line, and comments.
    pub fn forbidden(self) -> &'static str {
        match self {
            Self::Plain | Self::Pvm => include_str!("../config/forbidden"),
        }
    }

    /// The patches, in the order in which they are applied.
    pub fn patches(self) -> impl Iterator<Item = &'static Patch> {
        let own = match self {
            Self::Plain => &[],
            Self::Pvm => PVM_PATCHES,
        };
        COMMON_PATCHES.iter().chain(own)
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A flavour's name that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no kernel flavour {0:?}; there are plain and pvm")]
pub struct UnknownFlavour(pub String);

impl FromStr for Flavour {
    type Err = UnknownFlavour;

    fn from_str(name: &str) -> Result<Self, UnknownFlavour> {
        let found = Self::ALL.iter().find(|flavour| flavour.name() == name);
        found.copied().ok_or_else(|| UnknownFlavour(name.to_owned()))
    }
}

/// `patch!("x")`: the file `patches/x`.
macro_rules! patch {
    ($name:literal) => {
        Patch { name: $name, text: include_str!(concat!("../patches/", $name)) }
    };
}

const COMMON_PATCHES: &[Patch] =
    &[patch!("0001-lapic-timer-frequency.patch"), patch!("0002-no-init-memory-poison.patch")];

const PVM_PATCHES: &[Patch] = &[
    patch!("pvm/0001-registration.patch"),
    patch!("pvm/0002-interrupt-flag.patch"),
    patch!("pvm/0003-mode-switch.patch"),
    patch!("pvm/0004-user-pages.patch"),
    patch!("pvm/0005-no-hypercalls.patch"),
];
