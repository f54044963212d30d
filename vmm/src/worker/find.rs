//! Where the workers' program is.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::backend::BackendError;

/// The program's name.
pub const BINARY_NAME: &str = "hayfork-worker";
/// The variable that names the program.
pub const BINARY_VARIABLE: &str = "HAYFORK_WORKER";

/// The program: the one named, else what the variable names, else the one beside this program.
///
/// # Errors
/// [`BackendError::WorkerMissing`], with the places.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf, BackendError> {
    let variable = std::env::var_os(BINARY_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    // One that is named is the only one looked for: another would not be what was meant.
    let places = match named.map(Path::to_path_buf).or(variable) {
        Some(path) => vec![path],
        None => std::env::current_exe().map(|program| beside(&program)).unwrap_or_default(),
    };
    let found = places.iter().find(|path| {
        std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    });
    found.cloned().ok_or_else(|| {
        let places: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        BackendError::WorkerMissing { looked_for: places.join(", ") }
    })
}

/// The folder of a program, and the one above where cargo puts tests and examples into a folder of their own.
fn beside(program: &Path) -> Vec<PathBuf> {
    let Some(folder) = program.parent() else { return Vec::new() };
    let mut places = vec![folder.join(BINARY_NAME)];
    if ["deps", "examples"].iter().any(|name| folder.ends_with(name))
        && let Some(above) = folder.parent()
    {
        places.push(above.join(BINARY_NAME));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_program_is_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker");
        let error = find(Some(&path)).unwrap_err();
        assert_eq!(error.code(), "worker_missing");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        std::fs::write(&path, "").unwrap();
        assert_eq!(find(Some(&path)).unwrap_err().code(), "worker_missing", "it cannot be executed");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(find(Some(&path)).unwrap(), path);
    }

    #[test]
    fn tests_look_where_cargo_puts_programs() {
        let names = |program: &str| -> Vec<String> {
            beside(Path::new(program)).iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(names("/usr/bin/x"), ["/usr/bin/hayfork-worker"]);
        assert_eq!(names("/t/debug/deps/x"), ["/t/debug/deps/hayfork-worker", "/t/debug/hayfork-worker"]);
    }
}
