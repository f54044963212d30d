//! The language drivers that came with the initramfs, and which of them this root image can run.
//!
//! A driver is a folder `/drivers/<language>` with two small files: `launch`, the command that starts it (one word a line,
//! `{dir}` stands for the context's folder), and `launch.env`, its whole environment (one `NAME=value` a line).

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use hayfork_protocol::message::Language;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

/// How a driver is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Program and arguments, with `{dir}` in place.
    argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
}

impl Launch {
    /// Parses the two files.
    pub fn parse(launch: &str, env: &str) -> Self {
        let lines = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
        };
        let pairs = lines(env)
            .iter()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Self { argv: lines(launch), env: pairs }
    }

    /// Reads the files of `folder`; `None` if it holds no driver.
    pub fn read(folder: &str) -> Option<Self> {
        let launch = std::fs::read_to_string(format!("{folder}/launch")).ok()?;
        let env = std::fs::read_to_string(format!("{folder}/launch.env")).unwrap_or_default();
        Some(Self::parse(&launch, &env)).filter(|launch| !launch.argv.is_empty())
    }

    /// The command for a context's folder.
    pub fn argv(&self, folder: &str) -> Vec<String> {
        self.argv.iter().map(|word| word.replace("{dir}", folder)).collect()
    }

    /// The program that it runs.
    fn program(&self) -> &str {
        self.argv.first().map_or("", String::as_str)
    }
}

static FOUND: OnceLock<Vec<(Language, Launch)>> = OnceLock::new();

/// Looks for drivers below `drivers` whose program is in the root image.
pub fn discover(drivers: &str, root: BorrowedFd<'_>) {
    let found = Language::ALL
        .into_iter()
        .filter_map(|language| Some((language, Launch::read(&format!("{drivers}/{}", language.name()))?)))
        .filter(|(_, launch)| exists(root, launch.program()))
        .collect();
    set(found);
}

/// Uses these drivers.
pub fn set(found: Vec<(Language, Launch)>) {
    // A second call keeps the first result: images do not change while a guest lives.
    let _ = FOUND.set(found);
}

fn exists(root: BorrowedFd<'_>, program: &str) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found: Result<OwnedFd, _> = openat2(root, program, flags, Mode::empty(), ResolveFlags::IN_ROOT);
    found.is_ok()
}

/// The languages that can be used, in the protocol's order.
pub fn available() -> Vec<Language> {
    FOUND.get().map(|found| found.iter().map(|(language, _)| *language).collect()).unwrap_or_default()
}

/// How to start a language's driver; `None` if it cannot be used here.
pub fn launch(language: Language) -> Option<&'static Launch> {
    FOUND.get()?.iter().find(|(known, _)| *known == language).map(|(_, launch)| launch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn parses_both_files() {
        let launch =
            Launch::parse("python3\n/usr/lib/x y.py\n{dir}\n", "HOME=/home/user\nOPTS=a=b\n\nbroken\n");
        assert_eq!(launch.argv("/run/hayfork/3"), ["python3", "/usr/lib/x y.py", "/run/hayfork/3"]);
        assert_eq!(
            launch.env,
            [("HOME".to_owned(), "/home/user".to_owned()), ("OPTS".to_owned(), "a=b".to_owned())]
        );
    }

    #[test]
    fn a_folder_without_launch_is_no_driver() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Launch::read(folder.path().to_str().unwrap()), None);
    }

    #[test]
    fn finds_a_program_below_a_root_even_through_absolute_links() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("usr/bin")).unwrap();
        std::fs::write(folder.path().join("usr/bin/real"), "").unwrap();
        std::os::unix::fs::symlink("/usr/bin/real", folder.path().join("usr/bin/link")).unwrap();
        let root = std::fs::File::open(folder.path()).unwrap();
        assert!(exists(root.as_fd(), "/usr/bin/link"));
        assert!(!exists(root.as_fd(), "/usr/bin/none"));
    }
}
