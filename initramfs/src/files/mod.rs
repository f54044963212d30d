//! File operations, carried out with the user's rights by worker processes.
//!
//! The agent is root, and paths in the user's folders are the user's to change at any moment; so it never walks them
//! itself. A *worker* is a child of the agent that runs the same program without exec: in the user's mount namespace, uid
//! 1000, no capabilities, the seccomp filter, and the `files` cgroup, so that what it writes to the tmpfs counts as the
//! user's memory. It lives outside the user's PID namespace, where user code can neither see nor signal it. One worker
//! does one operation at a time, in plain blocking code; the agent keeps one ready and forks more when several operations
//! run at once.
//!
//! ```text
//!  host ◄──frames──► agent ([`pool`]) ◄──messages over a socket pair ([`wire`])──► worker ([`worker`])
//!                                                       [`resolve`] [`upload`] [`download`] [`listing`] [`change`]
//! ```
//! Credit passes through: a worker blocks in `send` when the host does not take a download, and the agent reports upload
//! bytes as consumed when the worker's socket took them.
//!
//! Watches on folders are kept by one process of the same kind for all of them ([`watch`]).

pub mod change;
pub mod download;
pub mod failure;
pub mod listing;
pub mod pool;
pub mod resolve;
pub mod upload;
pub mod watch;
pub mod wire;
pub mod worker;
