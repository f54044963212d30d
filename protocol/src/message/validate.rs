//! What both sides check of a request before acting on it: sizes, NUL bytes, paths' form, environment
//! entries. The host checks for the sake of a clear error; the guest checks because it must not rely
//! on the host's having done so.

use super::{Failure, FailureCode, Renew, Request};
use crate::limits;

impl Request {
    /// Checks what both sides check before acting: sizes, NUL bytes, environment entries.
    ///
    /// # Errors
    /// A [`Failure`] that says which rule was broken.
    pub fn validate(&self) -> Result<(), Failure> {
        match self {
            Self::Execute(execute) => {
                validate_code(&execute.code)?;
                validate_env(&execute.env)
            }
            Self::Command(command) => {
                if command.argv.first().is_none_or(String::is_empty) {
                    return Err(bad_request("the command is empty: name a program to run"));
                }
                if command.argv.iter().any(|argument| argument.contains('\0')) {
                    return Err(bad_request("an argument of the command contains a NUL character"));
                }
                if let Some(cwd) = &command.cwd {
                    validate_path(cwd)?;
                }
                validate_env(&command.env)
            }
            Self::WriteFile { path, .. }
            | Self::ReadFile { path }
            | Self::List { path }
            | Self::Stat { path }
            | Self::MakeDir { path }
            | Self::Remove { path }
            | Self::Watch { path, .. } => validate_path(path),
            Self::Rename { from, to } => validate_path(from).and_then(|()| validate_path(to)),
            Self::Renew(renew) => validate_renew(renew),
            Self::IdleOutput { .. }
            | Self::CloseContext { .. }
            | Self::Stats
            | Self::Shutdown
            | Self::SetClock { .. } => Ok(()),
        }
    }
}

fn bad_request(message: impl Into<String>) -> Failure {
    Failure { code: FailureCode::BadRequest, message: message.into() }
}

/// Checks source text: neither blank nor too long, and without NUL.
///
/// # Errors
/// A [`Failure`] that says which rule was broken.
pub fn validate_code(code: &str) -> Result<(), Failure> {
    if code.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(bad_request("the code is empty: give some source text to run"));
    }
    if code.contains('\0') {
        return Err(bad_request("the code contains a NUL character, which no source text can"));
    }
    if code.len() > limits::MAX_CODE {
        return Err(bad_request(format!(
            "the code is {} bytes long, at most {} are allowed: write it to a file and run that",
            code.len(),
            limits::MAX_CODE
        )));
    }
    Ok(())
}

/// Checks a path's form: not empty, no NUL, lengths as the kernel takes them. Where it leads is the
/// guest's concern.
///
/// # Errors
/// A [`Failure`] that says which rule was broken.
pub fn validate_path(path: &str) -> Result<(), Failure> {
    let bad = |message: String| Err(Failure { code: FailureCode::BadPath, message });
    if path.contains('\0') {
        return bad("the path contains a NUL character".into());
    }
    if path.len() > limits::MAX_PATH {
        return bad(format!(
            "the path is {} bytes long, at most {} are allowed",
            path.len(),
            limits::MAX_PATH
        ));
    }
    if let Some(name) = path.split('/').find(|name| name.len() > limits::MAX_NAME) {
        return bad(format!(
            "a name in the path is {} bytes long, at most {} are allowed",
            name.len(),
            limits::MAX_NAME
        ));
    }
    Ok(())
}

/// Checks a renewal: nothing that a host forgot to fill in, and a hostname that every program understands.
///
/// # Errors
/// A [`Failure`] that says which rule was broken.
fn validate_renew(renew: &Renew) -> Result<(), Failure> {
    if renew.seed == [0; 32] || renew.machine_id == [0; 16] {
        return Err(bad_request("the seed and the machine id of a renewal must not be all zero"));
    }
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= limits::MAX_HOSTNAME_LABEL
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if renew.hostname.len() > limits::MAX_HOSTNAME || !renew.hostname.split('.').all(is_label) {
        return Err(bad_request(format!(
            "{:?} is no hostname: use labels of letters, digits and inner hyphens, at most {} bytes in all",
            renew.hostname.chars().take(limits::MAX_HOSTNAME).collect::<String>(),
            limits::MAX_HOSTNAME
        )));
    }
    Ok(())
}

/// Environment names that would change how programs of the guest load or start, and so could break
/// the sandbox's own tools rather than the user's code. Compared without regard to case.
const DANGEROUS_ENV: &[&str] = &[
    "BASH_ENV",
    "BASH_FUNC",
    "BASHOPTS",
    "BUN_OPTIONS",
    "CDPATH",
    "ENV",
    "GCONV_PATH",
    "GLIBC_TUNABLES",
    "HOSTALIASES",
    "IFS",
    "LOCPATH",
    "MALLOC_CHECK_",
    "MALLOC_PERTURB_",
    "MALLOC_TRACE",
    "NLSPATH",
    "NODE_OPTIONS",
    "NODE_REPL_HISTORY",
    "PATH",
    "PROMPT_COMMAND",
    "PS4",
    "PYTHONHOME",
    "PYTHONINSPECT",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONWARNINGS",
    "RES_OPTIONS",
    "RESOLV_HOST_CONF",
    "SHELLOPTS",
    "TMPDIR",
    "TZDIR",
];

/// Checks environment entries: form, sizes, and names that are refused because they change how the
/// guest's own programs start (`LD_*`, `PATH`, `PYTHONPATH`, …).
///
/// # Errors
/// A [`Failure`] with [`FailureCode::BadEnv`] that names the entry.
pub fn validate_env(env: &[(String, String)]) -> Result<(), Failure> {
    let bad = |message: String| Err(Failure { code: FailureCode::BadEnv, message });
    if env.len() > limits::MAX_ENV_ENTRIES {
        return bad(format!(
            "{} environment variables, at most {} are allowed",
            env.len(),
            limits::MAX_ENV_ENTRIES
        ));
    }
    for (name, value) in env {
        let well_formed = !name.is_empty()
            && !name.as_bytes()[0].is_ascii_digit()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !well_formed {
            return bad(format!(
                "{name:?} is no name for an environment variable: use letters, digits and '_', not beginning with a digit"
            ));
        }
        if name.len() > limits::MAX_ENV_NAME {
            return bad(format!(
                "an environment variable's name is {} bytes long, at most {} are allowed",
                name.len(),
                limits::MAX_ENV_NAME
            ));
        }
        let upper = name.to_ascii_uppercase();
        if upper.starts_with("LD_")
            || upper.starts_with("BASH_FUNC_")
            || DANGEROUS_ENV.contains(&upper.as_str())
        {
            return bad(format!(
                "the environment variable {name} is refused, since it changes how programs in the sandbox start; \
                 set it from inside the code if it is really meant"
            ));
        }
        if value.len() > limits::MAX_ENV_VALUE {
            return bad(format!(
                "the value of {name} is {} bytes long, at most {} are allowed: pass it in a file",
                value.len(),
                limits::MAX_ENV_VALUE
            ));
        }
        if value.contains('\0') {
            return bad(format!("the value of {name} contains a NUL character"));
        }
    }
    Ok(())
}
