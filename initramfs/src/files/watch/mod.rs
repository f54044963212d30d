//! Watching folders: what changes in them is reported to the host as it happens.
//!
//! All watches of a guest are kept by one process, the *watcher*, which is made like a file worker (the user's rights,
//! walls and cgroup) when the first watch begins and ends with the last one, or with the host's connection: then every
//! inotify instance is gone with it, also in a guest that was restored from a snapshot. It has one thread, and one inotify
//! instance for each watch, so that a flood in one folder loses nothing of another.
//!
//! ```text
//!  host ◄──File data, credit── agent ([`keeper`]) ◄──messages ([`wire`])──► watcher ([`process`])
//!                                                                 │ one [`follow`] for each watch
//!                                           kernel ──inotify──► [`events`] ──► [`tree`], [`queue`]
//! ```
//! The agent asks for a batch when the host has credit for it, and the watcher sends one when it has something to say. So
//! nothing waits in a socket; a watch that nobody reads fills its bounded queue, is then not read from the kernel any more,
//! and the kernel's own bound (16,384 events) makes the overflow, which is reported in its place.
//!
//! No descriptor of a watched folder is kept: that would hide its removal, which the kernel reports with the last
//! reference. Where one is needed, the path is walked again beneath the folder that it must stay in, and must lead to the
//! folder that is watched already; a watch whose folder is elsewhere is over.

pub mod events;
pub mod follow;
pub mod keeper;
pub mod process;
pub mod queue;
mod scan;
pub mod tree;
pub mod wire;
