//! What callers ask for: engines, sandboxes, executions, commands. Plain data with defaults; checked before anything is
//! launched or sent.

use std::path::PathBuf;
use std::time::Duration;

use hayfork_protocol::limits;
use hayfork_protocol::message::{self, Env, FailureCode, Keep, Language, OutputLimit, Request, User};
use hayfork_vmm::backend::{MAX_MEMORY_MIB, MIN_MEMORY_MIB};

use crate::error::Error;
use crate::start;

/// How long a guest may take to boot if nothing is said.
pub const DEFAULT_BOOT_TIMEOUT: Duration = Duration::from_secs(60);
/// Guest memory for a python sandbox if nothing is said, in MiB.
pub const DEFAULT_MEMORY_PYTHON: u32 = 256;
/// Guest memory for a javascript sandbox if nothing is said, in MiB: the runtime takes more for itself than CPython.
pub const DEFAULT_MEMORY_JAVASCRIPT: u32 = 384;
/// Guest memory for a shell sandbox if nothing is said, in MiB.
pub const DEFAULT_MEMORY_SHELL: u32 = 256;
/// The longest timeout of an execution or command; longer ones are refused, since none is meant.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Guest memory, in MiB, for a sandbox of that language if nothing is said.
pub const fn default_memory_mib(language: Language) -> u32 {
    match language {
        Language::Python => DEFAULT_MEMORY_PYTHON,
        Language::JavaScript => DEFAULT_MEMORY_JAVASCRIPT,
        Language::Shell => DEFAULT_MEMORY_SHELL,
    }
}

/// What an [`Engine`](crate::Engine) works with.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The folder with the image set. `None`: as [`images::locate`](crate::images::locate) says.
    pub images: Option<PathBuf>,
    /// Folder of an installed image package, which counts after the environment and before the cache.
    pub image_package: Option<PathBuf>,
    /// What runs the machines: `auto` (also `None`), `monitor` or `qemu`. `auto` is the monitor where it can be used, else
    /// QEMU; [`BootTimings::fallback`](crate::BootTimings::fallback) then says why.
    pub backend: Option<String>,
    /// Where the monitor runs its machines: `process`, this one; `worker`, a confined process for each; or `auto` (also `None`): in
    /// this process as long as it bears them, and further ones in workers, if those can be had. QEMU's machines always have a process
    /// of their own. [`BootTimings::place`](crate::BootTimings::place) says where one is.
    pub isolation: Option<String>,
    /// How many machines this process bears, for the isolation `auto`: those of all its engines count. `None`: as many as the
    /// monitor's rule says (`hayfork_vmm::placement`).
    pub machines_in_process: Option<usize>,
    /// The program of worker processes. `None`: the variable `HAYFORK_WORKER`, then beside this program.
    pub worker: Option<PathBuf>,
    /// The QEMU binary. `None`: the variable `HAYFORK_QEMU`, then `PATH`.
    pub qemu: Option<PathBuf>,
    /// How long a guest may take to boot, unless the sandbox says otherwise.
    pub boot_timeout: Duration,
    /// The folder of paused sandboxes. `None`: the variable `HAYFORK_PAUSED_DIR`, then `paused` in the cache.
    pub paused: Option<PathBuf>,
    /// Whether a machine that is wanted for the second time becomes a template in memory, which those after it are made of.
    pub templates: bool,
    /// Where such templates are also kept on disk, for other processes and later ones.
    pub template_store: TemplateStore,
    /// The most machines at once, those that are kept ready among them; who wants one more waits. `None`: as many as there is
    /// memory for.
    pub max_machines: Option<usize>,
    /// The folder of templates with names. `None`: the variable `HAYFORK_NAMED_TEMPLATES_DIR`, then `named` in the cache.
    pub named_templates: Option<PathBuf>,
}

/// Where the templates of languages are kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TemplateStore {
    /// In the folder that `HAYFORK_TEMPLATE_CACHE_DIR` names, else in `templates` in the cache; at most as many MiB as
    /// `HAYFORK_TEMPLATE_CACHE_MB` says, else 4096, and not at all if that is 0.
    #[default]
    Usual,
    /// In this folder.
    Folder {
        /// Made if it is not there.
        path: PathBuf,
        /// The most bytes that all may have.
        most: u64,
    },
    /// Nowhere.
    Off,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            images: None,
            image_package: None,
            backend: None,
            isolation: None,
            machines_in_process: None,
            worker: None,
            qemu: None,
            boot_timeout: DEFAULT_BOOT_TIMEOUT,
            paused: None,
            templates: true,
            template_store: TemplateStore::Usual,
            max_machines: None,
            named_templates: None,
        }
    }
}

/// A sandbox to create.
#[derive(Clone, Debug)]
pub struct SandboxOptions {
    /// Which root image it has, and the language of executions that name none.
    pub language: Language,
    /// Guest memory in MiB; `None`: [`default_memory_mib`].
    pub memory_mib: Option<u32>,
    /// Virtual CPUs; `None`: one.
    pub cpus: Option<u8>,
    /// The sandbox closes itself after having run nothing for that long; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Environment of every execution and command; their own entries come on top.
    pub env: Env,
    /// How long the guest may take to boot; `None`: as the engine's options say.
    pub boot_timeout: Option<Duration>,
    /// A name for people and process lists: at most 40 letters, digits, `-`, `_` and `.`. It need not be unique.
    pub name: Option<String>,
    /// Whether commands may run as root inside the guest.
    pub grant_root: bool,
    /// Boots a machine although there is a template, or one that is kept ready.
    pub fresh_boot: bool,
}

/// Machines to be kept ready.
#[derive(Clone, Copy, Debug)]
pub struct WarmOptions {
    /// As [`SandboxOptions::language`].
    pub language: Language,
    /// As [`SandboxOptions::memory_mib`].
    pub memory_mib: Option<u32>,
    /// As [`SandboxOptions::cpus`].
    pub cpus: Option<u8>,
    /// How many.
    pub count: usize,
}

/// The most machines of a kind that are kept ready.
pub const MAX_WARM: usize = 256;

impl WarmOptions {
    /// Memory and virtual CPUs of each; checked.
    pub(crate) fn machine(&self) -> Result<(u32, u8), Error> {
        if self.count > MAX_WARM {
            return Err(Error::bad_option(format!(
                "{} machines are more than the {MAX_WARM} that can be kept ready",
                self.count
            )));
        }
        let memory_mib = self.memory_mib.unwrap_or(default_memory_mib(self.language));
        let vcpus = self.cpus.unwrap_or(1);
        start::spec("hayfork".into(), memory_mib, vcpus).validate()?;
        Ok((memory_mib, vcpus))
    }
}

/// The longest [`SandboxOptions::name`], in bytes.
pub const MAX_SANDBOX_NAME: usize = 40;

impl SandboxOptions {
    /// A sandbox of that language with every default.
    pub fn new(language: Language) -> Self {
        Self {
            language,
            memory_mib: None,
            cpus: None,
            idle_timeout: None,
            env: Env::new(),
            boot_timeout: None,
            name: None,
            grant_root: false,
            fresh_boot: false,
        }
    }

    /// Checks what can be checked without the host.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        if let Some(memory) = self.memory_mib.filter(|memory| *memory > MAX_MEMORY_MIB) {
            return Err(Error::bad_option(format!(
                "{memory} MiB of memory is more than a sandbox can have: {MIN_MEMORY_MIB} to {MAX_MEMORY_MIB} MiB"
            )));
        }
        if self.idle_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(Error::bad_option(
                "an idle timeout of 0 closes the sandbox at once: leave it out for none",
            ));
        }
        if self.boot_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(Error::bad_option("a boot timeout of 0 leaves no time to boot"));
        }
        if let Some(name) = &self.name {
            let fits = (1..=MAX_SANDBOX_NAME).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
            if !fits {
                return Err(Error::bad_option(format!(
                    "the sandbox name {name:?} is not 1 to {MAX_SANDBOX_NAME} letters, digits, '-', '_' or '.'"
                )));
            }
        }
        message::validate_env(&self.env)?;
        Ok(())
    }
}

/// Where a program's standard input comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StdinMode {
    /// From nowhere: it reads an end at once.
    #[default]
    None,
    /// From [`RunHandle::write_stdin`](crate::RunHandle::write_stdin).
    Stream,
}

/// Source text to run.
#[derive(Clone, Debug)]
pub struct ExecuteOptions {
    /// The source text, at most 1 MiB.
    pub code: String,
    /// Its language; `None`: the sandbox's.
    pub language: Option<Language>,
    /// The number of the persistent context; a number that is new makes a new one.
    pub context: u32,
    /// Environment for this execution alone.
    pub env: Env,
    /// Where standard input comes from.
    pub stdin: StdinMode,
    /// Whether the context's interpreter ends with it, as that of a program does: timers, threads and exit handlers that
    /// the code leaves behind belong to the execution.
    pub last: bool,
    /// How long the code may run, counted from its start; `None`: without limit.
    pub timeout: Option<Duration>,
    /// Bound on standard output.
    pub stdout: OutputLimit,
    /// Bound on standard error.
    pub stderr: OutputLimit,
}

/// 1 MB of standard output, head and tail kept.
pub const DEFAULT_STDOUT: OutputLimit =
    OutputLimit { bytes: limits::DEFAULT_STDOUT, keep: Keep::HeadAndTail };
/// 100 KB of standard error, head and tail kept.
pub const DEFAULT_STDERR: OutputLimit =
    OutputLimit { bytes: limits::DEFAULT_STDERR, keep: Keep::HeadAndTail };

impl ExecuteOptions {
    /// Runs that text in context 0, in the sandbox's language, with default limits, without stdin or timeout.
    pub fn new(code: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            language: None,
            context: 0,
            env: Env::new(),
            stdin: StdinMode::None,
            last: false,
            timeout: None,
            stdout: DEFAULT_STDOUT,
            stderr: DEFAULT_STDERR,
        }
    }

    /// The request for a sandbox of that language and environment; checked.
    pub(crate) fn into_request(self, language: Language, env: &Env) -> Result<Request, Error> {
        let request = Request::Execute(message::Execute {
            context: self.context,
            language: self.language.unwrap_or(language),
            code: self.code,
            env: merged(env, self.env),
            stdin: self.stdin == StdinMode::Stream,
            last: self.last,
            timeout_ms: timeout_ms(self.timeout)?,
            stdout: self.stdout,
            stderr: self.stderr,
        });
        request.validate()?;
        Ok(request)
    }
}

/// A program to run.
#[derive(Clone, Debug)]
pub struct CommandOptions {
    /// The program, searched in the guest's `PATH`, and its arguments.
    pub argv: Vec<String>,
    /// Working folder; `None`: /home/user.
    pub cwd: Option<String>,
    /// Environment on top of the sandbox's.
    pub env: Env,
    /// Whose rights it has; root only in a sandbox with [`SandboxOptions::grant_root`].
    pub user: User,
    /// Where standard input comes from.
    pub stdin: StdinMode,
    /// How long it may run; `None`: without limit.
    pub timeout: Option<Duration>,
    /// Bound on standard output.
    pub stdout: OutputLimit,
    /// Bound on standard error.
    pub stderr: OutputLimit,
}

impl CommandOptions {
    /// Runs that program as the sandbox's user, with default limits, without stdin or timeout.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            cwd: None,
            env: Env::new(),
            user: User::Sandbox,
            stdin: StdinMode::None,
            timeout: None,
            stdout: DEFAULT_STDOUT,
            stderr: DEFAULT_STDERR,
        }
    }

    /// The request for a sandbox with that environment; checked.
    pub(crate) fn into_request(self, env: &Env) -> Result<Request, Error> {
        let request = Request::Command(message::Command {
            argv: self.argv,
            cwd: self.cwd,
            env: merged(env, self.env),
            user: self.user,
            stdin: self.stdin == StdinMode::Stream,
            timeout_ms: timeout_ms(self.timeout)?,
            stdout: self.stdout,
            stderr: self.stderr,
        });
        match request.validate() {
            Ok(()) => Ok(request),
            // There is no code here that could be invalid.
            Err(failure) if failure.code == FailureCode::BadRequest => Err(Error::BadOption(failure.message)),
            Err(failure) => Err(failure.into()),
        }
    }
}

/// The entries of `base` that `own` does not name, then those of `own`.
pub(crate) fn merged(base: &Env, own: Env) -> Env {
    let mut env: Env =
        base.iter().filter(|(name, _)| own.iter().all(|(other, _)| other != name)).cloned().collect();
    env.extend(own);
    env
}

/// A timeout as the protocol has it: whole milliseconds, rounded up, so that a tiny one is not none.
fn timeout_ms(timeout: Option<Duration>) -> Result<Option<u64>, Error> {
    let Some(timeout) = timeout else { return Ok(None) };
    if timeout.is_zero() {
        return Err(Error::bad_option("a timeout of 0 leaves no time to run: leave it out for none"));
    }
    if timeout > MAX_TIMEOUT {
        return Err(Error::bad_option(format!(
            "a timeout of {} s is more than {} s: leave it out for none",
            timeout.as_secs(),
            MAX_TIMEOUT.as_secs()
        )));
    }
    let ms = timeout.as_nanos().div_ceil(1_000_000);
    Ok(Some(u64::try_from(ms).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(entries: &[(&str, &str)]) -> Env {
        entries.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn own_entries_win_over_those_of_the_sandbox() {
        let both = merged(&env(&[("A", "1"), ("B", "2")]), env(&[("B", "3"), ("C", "4")]));
        assert_eq!(both, env(&[("A", "1"), ("B", "3"), ("C", "4")]));
    }

    #[test]
    fn timeouts_are_rounded_up_and_bounded() {
        assert_eq!(timeout_ms(None).unwrap(), None);
        assert_eq!(timeout_ms(Some(Duration::from_nanos(1))).unwrap(), Some(1));
        assert_eq!(timeout_ms(Some(Duration::from_micros(2500))).unwrap(), Some(3));
        for bad in [Duration::ZERO, Duration::MAX] {
            assert_eq!(timeout_ms(Some(bad)).unwrap_err().code(), "bad_option");
        }
    }

    #[test]
    fn bad_options_are_refused() {
        let good = SandboxOptions::new(Language::Python);
        good.validate().unwrap();
        let bad = [
            SandboxOptions { idle_timeout: Some(Duration::ZERO), ..good.clone() },
            SandboxOptions { boot_timeout: Some(Duration::ZERO), ..good.clone() },
            SandboxOptions { name: Some("a b".into()), ..good.clone() },
            SandboxOptions { name: Some(String::new()), ..good.clone() },
            SandboxOptions { memory_mib: Some(u32::MAX), ..good.clone() },
        ];
        for options in bad {
            assert_eq!(options.validate().unwrap_err().code(), "bad_option", "{options:?}");
        }
        let refused = SandboxOptions { env: env(&[("LD_PRELOAD", "x")]), ..good };
        assert_eq!(refused.validate().unwrap_err().code(), "env_invalid");
    }

    #[test]
    fn requests_are_checked_before_they_are_sent() {
        let refused =
            |options: ExecuteOptions| options.into_request(Language::Shell, &Env::new()).unwrap_err().code();
        assert_eq!(refused(ExecuteOptions::new(" \n")), "code_invalid");
        assert_eq!(refused(ExecuteOptions::new("a\0b")), "code_invalid");
        assert_eq!(
            refused(ExecuteOptions { env: env(&[("1", "")]), ..ExecuteOptions::new("x") }),
            "env_invalid"
        );
        let none: [&str; 0] = [];
        assert_eq!(CommandOptions::new(none).into_request(&Env::new()).unwrap_err().code(), "bad_option");
    }
}
