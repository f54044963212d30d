//! The hayfork guest kernel: its configuration and the builder that makes it.
//!
//! # What is here
//! * `config/hayfork.config`: the one fragment over `allnoconfig`, grouped and commented by why an option is in.
//! * `config/forbidden`: options that must stay out, whatever selects them.
//! * `patches/`: the few changes to Debian's source, each with its reason and its measured gain.
//! * `config/pvm.config`, `patches/pvm/`: what a kernel of the flavour `pvm` has differently.
//! * this library: gets a source, configures, checks, builds, and says what it built ([`Manifest`]).
//!
//! # From a source to a vmlinux
//! ```text
//!  Source::newest_package()  or  Source::tree(path)       what would be built: name, version, digest (Identity)
//!            |
//!       inputs_key()                                      content hash of every input: the name of a cache entry
//!            |
//!   Builder::build():  tools present? -> download -> unpack or copy (only what an x86 build reads) -> patch
//!             -> allnoconfig + fragment (+ differences) -> check -> make vmlinux -> strip -> vmlinux, config, manifest.json
//! ```
//! The check is strict in both directions: each line of the fragment must be in the final configuration exactly as written,
//! and no forbidden option may be on. The error lists every deviation ([`Deviation`]), not only the first.
//!
//! The crate knows no cache. A caller looks for [`inputs_key`] in its own, and if it is not there, lets [`Builder::build`]
//! write into a directory aside and renames that.
//!
//! # Flavours
//! `plain` is the product's kernel: it runs on hardware virtualisation and under emulation. `pvm` is a developer's build for
//! machines whose `/dev/kvm` is kvm_pvm, where an ordinary kernel does not get through its boot; it boots nowhere else. It has
//! the same configuration but for what its patches need and for hardening that protects nothing there: in such a guest user
//! code can reach the kernel, so the virtual machine's wall is the only one. Its patches are a derived work of Linux and
//! licensed as it is (GPL-2.0).
//!
//! # Reproducible
//! User, host, time and build number that the kernel embeds are fixed, the environment is cleared, and the tree is built in
//! place so that no path of this machine gets in. Two builds from the same inputs with the same compiler give the same bytes.
//!
//! # Running it
//! `vmlinux` is an uncompressed ELF file with a PVH note. The host appends [`RECOMMENDED_COMMAND_LINE`], under QEMU's TCG
//! also [`tcg_command_line`], on kvm_pvm [`PVM_COMMAND_LINE`]; see [`cmdline`] for what each word does, and for the CPU flag
//! worth turning off under TCG.

mod builder;
mod check;
pub mod cmdline;
mod command;
mod error;
mod flavour;
mod fragment;
mod key;
mod manifest;
mod package;
mod progress;
mod source;
mod tools;
mod tree;

pub use builder::Builder;
pub use check::{Deviation, check};
pub use cmdline::{PVM_COMMAND_LINE, RECOMMENDED_COMMAND_LINE, tcg_command_line};
pub use error::{Error, Result};
pub use flavour::{Flavour, Patch, UnknownFlavour};
pub use fragment::{ParseError, Setting, parse_config, parse_forbidden, parse_fragment};
pub use key::{FORMAT, inputs_key};
pub use manifest::Manifest;
pub use package::Candidate;
pub use progress::{Progress, Step};
pub use source::{Identity, Source};
pub use tools::{Tool, check_tools, required_packages};
