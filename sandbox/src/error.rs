//! What can go wrong, for callers of the engine.
//!
//! Every error has a [`code`](Error::code) that never changes, for programs; a message that says what happened; and a
//! [`remedy`](Error::remedy) that says what to do. Errors are cheap to clone, since the death of one virtual machine is
//! the answer to everything that was running in it.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use hayfork_protocol::message::{Failure, FailureCode};
use hayfork_vmm::backend::BackendError;

use crate::images::ImagesError;

/// Why sandboxes are closed by a shutdown of their engine, and what is said when its runtime is gone.
pub(crate) const SHUT_DOWN: &str = "the engine was shut down";
pub(crate) const ENDED: &str = "the engine has ended";

/// Why an operation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The guest images cannot be found or used.
    #[error("{0}")]
    Images(#[source] Arc<ImagesError>),
    /// The virtual machine could not be started, or is gone and nothing was running in it.
    #[error("{0}")]
    Backend(#[source] Arc<BackendError>),
    /// An option that makes no sense. Nothing was started.
    #[error("{0}")]
    BadOption(String),
    /// The source text, path, command or environment was refused, here or by the guest; or the guest could not do what
    /// it was asked.
    #[error("{}", .0.message)]
    Refused(Failure),
    /// The sandbox's images have no interpreter for this language.
    #[error("this sandbox cannot run {language}; its image has {available}")]
    NoSuchLanguage {
        /// The language asked for.
        language: &'static str,
        /// The languages that are there, for people.
        available: String,
    },
    /// The sandbox was closed, or its virtual machine died, before the call or while it waited for its turn. What was
    /// asked for did not begin, or ended by somebody's wish.
    #[error("the sandbox is closed: {reason}")]
    SessionClosed {
        /// Why it is closed.
        reason: String,
        /// What the virtual machine died of, if it died.
        #[source]
        cause: Option<Arc<BackendError>>,
    },
    /// The virtual machine died while this ran: it may have happened in whole, in part or not at all.
    #[error("the virtual machine died while this ran, so its outcome is unknown: {cause}")]
    OutcomeUnknown {
        /// What it died of, with the end of its console or error output.
        #[source]
        cause: Arc<BackendError>,
    },
    /// The guest was told to end something and did not within the time it had, so the virtual machine was killed.
    #[error("the guest no longer obeys, so the virtual machine was killed: {0}")]
    Unresponsive(String),
    /// The caller gave the operation up.
    #[error("the operation was cancelled")]
    Cancelled,
    /// The guest broke the protocol: it sent something that cannot be, or more than it was asked for. The virtual
    /// machine was killed.
    #[error("the guest broke the protocol, so the virtual machine was killed: {0}")]
    Protocol(String),
    /// A command as root was asked for in a sandbox that was created without that right.
    #[error("commands as root are not allowed in this sandbox")]
    RootNotGranted,
    /// Too much is queued or running in this sandbox.
    #[error("{0}")]
    Capacity(String),
    /// Standard input was written to after its end.
    #[error("standard input is closed: {0}")]
    StdinClosed(&'static str),
    /// There is no paused sandbox of that id.
    #[error("there is no paused sandbox {id:?}")]
    NoSuchPaused {
        /// What was asked for.
        id: String,
    },
    /// Somebody resumes the paused sandbox at the moment.
    #[error("the paused sandbox {id:?} is being resumed or removed by somebody else")]
    PausedBusy {
        /// Which.
        id: String,
    },
    /// There is no template of that name.
    #[error("there is no template {name:?}")]
    NoSuchTemplate {
        /// What was asked for.
        name: String,
    },
    /// The code that a template was to be built with did not end well.
    #[error("the code of the template {name:?} {how}:\n{output}")]
    TemplateCode {
        /// The template's name.
        name: String,
        /// How it ended.
        how: String,
        /// The end of what it printed.
        output: String,
    },
    /// The handle was used in a child made by `fork`.
    #[error("this handle belongs to another process: it was made before a fork")]
    ForkedProcess,
    /// The caller's own reader or writer failed in a file transfer, or the host refused a resource.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The cause.
        #[source]
        source: Arc<io::Error>,
    },
}

impl Error {
    /// A short name that never changes, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Images(error) => match **error {
                ImagesError::NotFound { .. } | ImagesError::NotASet { .. } => "images_missing",
                ImagesError::MissingLanguage { .. } => "image_language_missing",
                ImagesError::MissingKernel { .. } => "image_kernel_missing",
                ImagesError::Unreadable { .. } => "image_unreadable",
                ImagesError::WrongSize { .. } | ImagesError::WrongDigest { .. } => "images_corrupt",
                ImagesError::BadManifest { .. } | ImagesError::WrongFormat { .. } => "images_invalid",
            },
            Self::Backend(error) => error.code(),
            Self::BadOption(_) => "bad_option",
            Self::Refused(failure) => match failure.code {
                FailureCode::BadRequest => "code_invalid",
                FailureCode::BadEnv => "env_invalid",
                FailureCode::NoSuchLanguage => "image_language_missing",
                FailureCode::NotFound => "not_found",
                FailureCode::WrongType => "wrong_type",
                FailureCode::BadPath => "bad_path",
                FailureCode::PermissionDenied => "permission_denied",
                FailureCode::NoSpace => "no_space",
                FailureCode::CannotStart => "cannot_start",
                FailureCode::Io => "io",
                FailureCode::Cancelled => "cancelled",
                FailureCode::TooMany => "too_many",
            },
            Self::NoSuchLanguage { .. } => "image_language_missing",
            Self::SessionClosed { .. } => "session_closed",
            Self::OutcomeUnknown { .. } | Self::Unresponsive(_) => "outcome_unknown",
            Self::Cancelled => "cancelled",
            Self::Protocol(_) => "protocol",
            Self::RootNotGranted => "root_not_granted",
            Self::Capacity(_) => "capacity",
            Self::StdinClosed(_) => "stdin_closed",
            Self::NoSuchPaused { .. } => "paused_missing",
            Self::PausedBusy { .. } => "paused_busy",
            Self::NoSuchTemplate { .. } => "template_missing",
            Self::TemplateCode { .. } => "template_code_failed",
            Self::ForkedProcess => "forked_process",
            Self::Io { .. } => "io",
        }
    }

    /// What to do about it, in one or two sentences.
    pub fn remedy(&self) -> String {
        let text: Cow<'static, str> = match self {
            Self::Images(error) => Cow::Borrowed(match **error {
                ImagesError::MissingLanguage { .. } => {
                    "Choose a language that the set holds, or build the images again (make images)."
                }
                ImagesError::MissingKernel { .. } => {
                    "Build the kernel of that flavour (cargo xtask images), or use the backend \"qemu\", which needs none."
                }
                ImagesError::NotFound { .. } | ImagesError::NotASet { .. } => {
                    "Build the images (make images), or set HAYFORK_IMAGES_DIR to a folder that holds a set."
                }
                _ => "Build the images again (make images).",
            }),
            Self::Backend(error) => error.remedy(),
            Self::BadOption(_) => Cow::Borrowed("Change the option named in the message."),
            Self::Refused(failure) => Cow::Borrowed(refusal_remedy(failure.code)),
            Self::NoSuchLanguage { language, .. } => {
                Cow::Owned(format!("Create a sandbox with language {language}."))
            }
            Self::SessionClosed { .. } => Cow::Borrowed("Create a new sandbox."),
            Self::OutcomeUnknown { cause } => Cow::Owned(format!(
                "Create a new sandbox, and run this again only if running it twice does no harm. {}",
                cause.remedy()
            )),
            Self::Unresponsive(_) => {
                Cow::Borrowed("Create a new sandbox; what ran in this one may have overloaded its kernel.")
            }
            Self::Cancelled => Cow::Borrowed("Nothing: somebody asked for it."),
            Self::Protocol(_) => Cow::Borrowed(
                "Do not trust what this sandbox gave. If it ran nothing hostile, the images do not belong to this version: \
                 build or install them again.",
            ),
            Self::RootNotGranted => {
                Cow::Borrowed("Create the sandbox with the right to run commands as root.")
            }
            Self::Capacity(_) => {
                Cow::Borrowed("Wait until some of what runs has ended, or use more sandboxes.")
            }
            Self::StdinClosed(_) => {
                Cow::Borrowed("Ask for a stdin stream when starting, and write before closing it.")
            }
            Self::NoSuchPaused { .. } => Cow::Borrowed(
                "Use the id that pause gave, as the same user; resuming a sandbox takes it out of rest unless it is to be kept.",
            ),
            Self::PausedBusy { .. } => Cow::Borrowed(
                "Wait for the other one, or resume with keep by all, so that each gets a clone.",
            ),
            Self::NoSuchTemplate { .. } => Cow::Borrowed(
                "Build it (hayfork build NAME), or list those that there are (hayfork build --list).",
            ),
            Self::TemplateCode { .. } => {
                Cow::Borrowed("Change the code so that it runs in a new sandbox without an error.")
            }
            Self::ForkedProcess => Cow::Borrowed(
                "Create engines and sandboxes in the process that uses them, or use the spawn start method of multiprocessing.",
            ),
            Self::Io { .. } => Cow::Borrowed("Look at the cause: it is on the host's side."),
        };
        text.into_owned()
    }

    /// Whether the engine itself has ended.
    pub(crate) fn is_shutdown(&self) -> bool {
        matches!(self, Self::SessionClosed { reason, cause: None } if reason == SHUT_DOWN || reason == ENDED)
    }

    /// Whether it says something of the host at this moment, and nothing of the machine or what it was made of.
    pub(crate) fn is_of_the_host(&self) -> bool {
        match self {
            Self::Io { .. } | Self::Capacity(_) | Self::Cancelled => true,
            Self::Backend(error) => matches!(
                **error,
                BackendError::Spawn { .. }
                    | BackendError::Hypervisor(_)
                    | BackendError::WorkerMissing { .. }
                    | BackendError::WorkerUnusable { .. }
                    | BackendError::WorkerLost { .. }
                    | BackendError::BootTimeout { .. }
                    | BackendError::Killed
            ),
            _ => self.is_shutdown(),
        }
    }

    /// A refusal of an option, before anything was started.
    pub(crate) fn bad_option(message: impl Into<String>) -> Self {
        Self::BadOption(message.into())
    }

    /// A failure of the host's own input or output.
    pub(crate) fn io(what: &'static str, source: io::Error) -> Self {
        Self::Io { what, source: Arc::new(source) }
    }

    /// The answer to calls on a sandbox that somebody closed.
    pub(crate) fn closed(reason: impl Into<String>) -> Self {
        Self::SessionClosed { reason: reason.into(), cause: None }
    }
}

fn refusal_remedy(code: FailureCode) -> &'static str {
    match code {
        FailureCode::BadRequest => "Change the code, the command or the limit named in the message.",
        FailureCode::BadEnv => "Change the environment variable named in the message.",
        FailureCode::NoSuchLanguage => "Create a sandbox with that language.",
        FailureCode::NotFound => "List the folder to see what is there; relative paths begin at /home/user.",
        FailureCode::WrongType => {
            "Look at the entry's type: a file is needed where a folder is, or the other way round."
        }
        FailureCode::BadPath => {
            "Use a path inside the sandbox's home or temporary folders, with names of at most 255 bytes."
        }
        FailureCode::PermissionDenied => {
            "Use a place that the sandbox's user may write to: /home/user or /tmp."
        }
        FailureCode::NoSpace => "Remove files, or create the sandbox with more memory: its files live there.",
        FailureCode::CannotStart => "Check that the program exists in the image and may be executed.",
        FailureCode::Io => "Look at the cause in the message.",
        FailureCode::Cancelled => "Nothing: somebody asked for it.",
        FailureCode::TooMany => "Stop watches that are no longer needed, or watch a smaller folder.",
    }
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Self {
        match error {
            // Every field of a spec comes from an option of the caller's.
            BackendError::BadSpec(problem) => Self::BadOption(problem.to_string()),
            BackendError::ForkedProcess => Self::ForkedProcess,
            error => Self::Backend(Arc::new(error)),
        }
    }
}

impl From<ImagesError> for Error {
    fn from(error: ImagesError) -> Self {
        Self::Images(Arc::new(error))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure.code {
            FailureCode::Cancelled => Self::Cancelled,
            _ => Self::Refused(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hayfork_vmm::backend::MachineSpec;

    fn every_refusal() -> Vec<FailureCode> {
        use FailureCode::*;
        vec![
            BadRequest,
            BadEnv,
            NoSuchLanguage,
            NotFound,
            WrongType,
            BadPath,
            PermissionDenied,
            NoSpace,
            CannotStart,
            Io,
            Cancelled,
            TooMany,
        ]
    }

    #[test]
    fn codes_are_snake_case_and_every_error_has_a_remedy() {
        let mut errors: Vec<Error> = every_refusal()
            .into_iter()
            .map(|code| Error::Refused(Failure { code, message: "m".into() }))
            .collect();
        let mut small = MachineSpec::new("k", "i");
        small.memory_mib = 1;
        errors.extend([
            small.validate().unwrap_err().into(),
            Error::bad_option("x"),
            Error::closed("x"),
            Error::OutcomeUnknown { cause: Arc::new(BackendError::Killed) },
            Error::Unresponsive("x".into()),
            Error::Protocol("x".into()),
            Error::RootNotGranted,
            Error::Capacity("x".into()),
            Error::StdinClosed("x"),
            Error::NoSuchPaused { id: "x".into() },
            Error::PausedBusy { id: "x".into() },
            Error::NoSuchTemplate { name: "x".into() },
            Error::TemplateCode { name: "x".into(), how: "y".into(), output: "z".into() },
            Error::ForkedProcess,
            Error::io("x", io::Error::other("y")),
            ImagesError::NotFound { searched: vec![] }.into(),
            ImagesError::MissingKernel { flavour: "pvm", directory: "d".into() }.into(),
        ]);
        for error in errors {
            assert!(error.code().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{error:?}");
            assert!(error.remedy().ends_with('.') && !error.to_string().is_empty(), "{error:?}");
        }
    }

    #[test]
    fn an_impossible_machine_is_a_bad_option_and_too_little_memory_keeps_its_code() {
        let mut spec = MachineSpec::new("k", "i");
        spec.vcpus = 0;
        assert_eq!(Error::from(spec.validate().unwrap_err()).code(), "bad_option");
        spec.vcpus = 1;
        spec.memory_mib = 1;
        assert_eq!(Error::from(spec.validate().unwrap_err()).code(), "memory_too_small");
    }
}
