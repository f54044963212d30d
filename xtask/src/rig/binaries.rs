//! The static programs that run in the rig: what they are is for cargo and `tests/rig/rig.toml` to say.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cargo::{self, Executable};
use crate::progress::Task;

/// The cargo profile of tests: quick enough for a translated processor, with assertions.
const TEST_PROFILE: &str = "rig";
/// The cargo profile of what is measured: that of what users run.
const MEASURED_PROFILE: &str = "release";

/// The part of `rig.toml` that says what to build; the rig itself reads the rest.
#[derive(Debug, Deserialize)]
pub(crate) struct Settings {
    /// Tests of packages.
    tests: Vec<Tests>,
    /// Examples that are tests as a whole.
    #[serde(default)]
    program: Vec<Wanted>,
    /// Examples that print figures.
    #[serde(default)]
    figures: Vec<Wanted>,
}

/// The tests of a package, or of one integration test target of it.
#[derive(Debug, Deserialize)]
struct Tests {
    package: String,
    target: Option<String>,
    /// Whether they need the image set.
    #[serde(default)]
    images: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Wanted {
    package: String,
    example: String,
    /// Whether it needs the image set.
    #[serde(default)]
    images: bool,
}

/// A program that was built, as the rig reads it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Program {
    package: String,
    target: String,
    kind: String,
    /// The file.
    pub(crate) path: PathBuf,
}

impl Settings {
    /// Reads `rig.toml`.
    ///
    /// # Errors
    /// It cannot be read or is not in form.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not in form", path.display()))
    }

    /// Builds everything that is a test.
    ///
    /// # Errors
    /// Something does not compile, or there is nothing.
    pub(crate) fn build_tests(&self, tree: &Path, task: &Task) -> Result<Vec<Program>> {
        let mut built = Vec::new();
        for Tests { package, target, .. } in &self.tests {
            task.step(&format!("compiling the tests of {package}"));
            let mut arguments = vec!["test", "--no-run", "--profile", TEST_PROFILE];
            match target {
                Some(target) => arguments.extend(["--test", target]),
                None => arguments.extend(["--lib", "--tests"]),
            }
            let tests = build(tree, package, &arguments, task)?;
            if tests.is_empty() {
                bail!("{package} has no such tests for the rig");
            }
            built.extend(tests);
        }
        built.extend(build_examples(&self.program, TEST_PROFILE, tree, task)?);
        Ok(built)
    }

    /// Whether a test needs the image set.
    pub(crate) fn tests_need_images(&self) -> bool {
        self.tests.iter().any(|tests| tests.images)
    }

    /// Whether a figure needs the image set.
    pub(crate) fn figures_need_images(&self) -> bool {
        self.figures.iter().any(|example| example.images)
    }

    /// Builds everything that prints figures.
    ///
    /// # Errors
    /// Something does not compile.
    pub(crate) fn build_figures(&self, tree: &Path, task: &Task) -> Result<Vec<Program>> {
        build_examples(&self.figures, MEASURED_PROFILE, tree, task)
    }
}

/// Examples, each once.
fn build_examples(examples: &[Wanted], profile: &str, tree: &Path, task: &Task) -> Result<Vec<Program>> {
    let mut wanted = examples.to_vec();
    wanted.sort();
    wanted.dedup();
    let mut built = Vec::new();
    for Wanted { package, example, .. } in &wanted {
        task.step(&format!("compiling {package}'s example {example}"));
        built.extend(build(tree, package, &["build", "--example", example, "--profile", profile], task)?);
    }
    Ok(built)
}

fn build(tree: &Path, package: &str, arguments: &[&str], task: &Task) -> Result<Vec<Program>> {
    let target = cargo::static_target();
    cargo::ensure_target(&target, tree, task)?;
    let mut command = cargo::command(tree);
    command.args(arguments).args(["--package", package, "--target", &target]);
    let built = cargo::build(&mut command, task).with_context(|| format!("{package} does not compile"))?;
    Ok(built.into_iter().map(|executable| program(package, executable)).collect())
}

fn program(package: &str, executable: Executable) -> Program {
    let Executable { target, kind, path } = executable;
    Program { package: package.to_owned(), target, kind, path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_are_in_form() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/rig/rig.toml");
        let settings = Settings::read(&path).expect("reads");
        assert!(settings.tests.iter().any(|tests| tests.package == "hayfork-vmm" && tests.target.is_none()));
        let probe = Wanted { package: "hayfork-vmm".to_owned(), example: "probe".to_owned(), images: false };
        assert!(settings.program.contains(&probe));
    }
}
