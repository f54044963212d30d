//! The hayfork engine: guest images, sandboxes, limits and the choice of a backend.
//!
//! ```no_run
//! use hayfork_sandbox::{Engine, EngineOptions, ExecuteOptions, Language, SandboxOptions};
//!
//! # async fn example() -> Result<(), hayfork_sandbox::Error> {
//! let engine = Engine::new(EngineOptions::default())?;
//! let sandbox = engine.create(SandboxOptions::new(Language::Python)).await?;
//! let execution = sandbox.execute(ExecuteOptions::new("print(6 * 7)")).collect().await?;
//! assert_eq!(execution.stdout, b"42\n");
//! sandbox.close().await
//! # }
//! ```
//!
//! * [`Engine`] owns a small tokio runtime for control work, the backend and all virtual machines of this process.
//! * [`Sandbox`] is one virtual machine with a guest agent; its calls may be made from any thread and any async
//!   executor, and from several at once.
//! * [`Running`] is an execution or command under way: a stream of events with back-pressure.

mod backend_choice;
mod connection;
mod doctor;
mod engine;
mod error;
mod files;
mod guest;
pub mod images;
mod named;
mod options;
mod paused;
mod pool;
mod process;
mod reaper;
mod running;
mod sandbox;
mod signals;
mod snapshot;
mod start;
pub mod store;
pub mod text;
mod unsafe_watch;
mod watch;

pub use doctor::{Check, Report, Verdict};
pub use engine::Engine;
pub use error::Error;
pub use files::IdleOutput;
pub use named::{
    BuildOptions, CloneOptions, DEFAULT_BUILD_TIMEOUT, ENVIRONMENT as NAMED_TEMPLATES_ENVIRONMENT,
    MAX_TEMPLATE_NAME, NamedTemplate,
};
pub use options::{
    CommandOptions, DEFAULT_BOOT_TIMEOUT, DEFAULT_MEMORY_JAVASCRIPT, DEFAULT_MEMORY_PYTHON,
    DEFAULT_MEMORY_SHELL, DEFAULT_STDERR, DEFAULT_STDOUT, EngineOptions, ExecuteOptions, MAX_SANDBOX_NAME,
    MAX_TIMEOUT, MAX_WARM, SandboxOptions, StdinMode, TemplateStore, WarmOptions, default_memory_mib,
};
pub use paused::{ENVIRONMENT as PAUSED_ENVIRONMENT, MAX_NOTE, Paused, ResumeOptions, Resumed};
pub use running::{Execution, Outcome, RunEvent, RunHandle, RunTimings, Running};
pub use sandbox::{BootTimings, Sandbox, StartedFrom};
pub use snapshot::Snapshot;
pub use watch::Watch;

pub use hayfork_protocol::change::{Change, ChangeKind};
pub use hayfork_protocol::message::{
    BundleKind, Control, Env, Exception, FileInfo, FileKind, Keep, Language, OutputLimit, Stats, Status, User,
};
pub use hayfork_vmm::backend::{HostMemory, Isolation, KernelFlavour, Place};
