//! Which versions the package indexes offer for a recipe: part of an image's key, so that an update in
//! Debian gives a new image.
//!
//! Asking takes about 10 s for each recipe, so an answer is kept for a day in the cache (`answers/`). When
//! the index cannot be reached, an older answer does, and this is said.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::progress::Task;
use crate::store;

use super::bootstrap;
use super::dpkg::Package;
use super::npm::{self, NpmPackage};
use super::recipe::Recipe;

/// How long an answer holds.
const HOLDS: Duration = Duration::from_secs(24 * 60 * 60);

/// The versions for a recipe.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Resolution {
    /// Debian packages, those that others need included; sorted.
    pub(crate) packages: Vec<Package>,
    /// Packages of the npm registry, in the recipe's order.
    pub(crate) npm: Vec<NpmPackage>,
}

/// Which answers are good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Ask now.
    Now,
    /// An answer of the last day, else ask.
    Day,
    /// Any answer, else ask.
    Any,
    /// Any answer, and never ask.
    Offline,
}

impl Freshness {
    /// Whether an answer of that age will do.
    pub(crate) fn accepts(self, age: Duration) -> bool {
        match self {
            Self::Now => false,
            Self::Day => age < HOLDS,
            Self::Any | Self::Offline => true,
        }
    }
}

/// An answer with the time it was given.
#[derive(Debug, Deserialize, Serialize)]
struct Answer {
    /// Seconds since 1970.
    asked: u64,
    resolution: Resolution,
}

impl Answer {
    fn age(&self) -> Duration {
        let asked = UNIX_EPOCH + Duration::from_secs(self.asked);
        // An answer from the future was given under a wrong clock: too old.
        SystemTime::now().duration_since(asked).unwrap_or(Duration::MAX)
    }
}

/// The kept answer for the recipe, if there is one that is good enough.
///
/// # Errors
/// Never in practice.
pub(crate) fn kept(context: &Context, recipe: &Recipe, freshness: Freshness) -> Result<Option<Resolution>> {
    let answer = read(&path(context, recipe)?).filter(|answer| freshness.accepts(answer.age()));
    Ok(answer.map(|answer| answer.resolution))
}

fn read(path: &Path) -> Option<Answer> {
    fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok())
}

/// The versions for the recipe.
///
/// # Errors
/// The indexes cannot be asked and there is no earlier answer.
pub(crate) fn resolve(
    context: &Context,
    recipe: &Recipe,
    freshness: Freshness,
    task: &Task,
) -> Result<Resolution> {
    resolve_by(context, recipe, freshness, task, || ask(recipe))
}

fn ask(recipe: &Recipe) -> Result<Resolution> {
    let packages = bootstrap::simulate(recipe)?;
    let npm = recipe.npm.iter().map(npm::query).collect::<Result<_>>()?;
    Ok(Resolution { packages, npm })
}

fn resolve_by(
    context: &Context,
    recipe: &Recipe,
    freshness: Freshness,
    task: &Task,
    ask: impl FnOnce() -> Result<Resolution>,
) -> Result<Resolution> {
    let path = path(context, recipe)?;
    let kept = read(&path);
    if let Some(answer) = kept.as_ref().filter(|answer| freshness.accepts(answer.age())) {
        task.step(&format!("package versions as of {} (asked again after a day)", ago(answer.age())));
        return Ok(answer.resolution.clone());
    }
    if freshness == Freshness::Offline {
        bail!(
            "the {} image has never been built here, and without the network it cannot be; run `cargo xtask images` \
             once with the network",
            recipe.image.language
        );
    }
    task.step("asking the package index for versions");
    match (ask(), kept) {
        (Ok(resolution), _) => {
            let asked = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let answer = Answer { asked, resolution };
            store::replace_file(&path, &serde_json::to_vec_pretty(&answer)?)?;
            Ok(answer.resolution)
        }
        (Err(error), Some(answer)) if freshness != Freshness::Now => {
            context.progress.note(&format!(
                "{}: the package index cannot be asked, its answer of {} does: {error:#}",
                recipe.image.language,
                ago(answer.age())
            ));
            Ok(answer.resolution)
        }
        (Err(error), _) => Err(error),
    }
}

/// Where the answer for a recipe is kept: by what was asked, so that other changes of a recipe keep it.
fn path(context: &Context, recipe: &Recipe) -> Result<PathBuf> {
    let npm: Vec<(&str, &str)> =
        recipe.npm.iter().map(|npm| (npm.package.as_str(), npm.version.as_str())).collect();
    let key = store::key(&(&recipe.apt, npm))?;
    Ok(context.store.root().join("answers").join(format!("{key}.json")))
}

fn ago(age: Duration) -> String {
    match age.as_secs() / 60 {
        minutes @ 0..=119 => format!("{minutes} minutes ago"),
        minutes @ 120..=2879 => format!("{} hours ago", minutes / 60),
        minutes => format!("{} days ago", minutes / 1440),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use crate::progress::Progress;
    use crate::store::Store;

    use super::*;

    fn context(directory: &tempfile::TempDir) -> Context {
        Context {
            tree: directory.path().to_owned(),
            store: Store::new(directory.path().join("cache")),
            progress: Progress::new(),
        }
    }

    fn recipe(packages: &str) -> Recipe {
        let text = format!(
            "[image]\nlanguage = \"x\"\ndescription = \"x\"\n[apt]\nsuite = \"trixie\"\npackages = [{packages}]\n"
        );
        Recipe::parse(&text).expect("recipe")
    }

    fn versions(version: &str) -> Resolution {
        let bash = Package { name: "bash".into(), version: version.into(), architecture: "amd64".into() };
        Resolution { packages: vec![bash], npm: Vec::new() }
    }

    #[test]
    fn answers_are_kept_for_a_day() {
        let directory = tempfile::tempdir().expect("tempdir");
        let context = context(&directory);
        let task = context.progress.task("x");
        let recipe = recipe("\"bash\"");
        let resolve = |freshness, answer: Result<Resolution>| {
            resolve_by(&context, &recipe, freshness, &task, || answer)
        };
        let never = || Err(anyhow!("asked"));

        assert!(resolve(Freshness::Offline, Ok(versions("1"))).is_err(), "offline asks nobody");
        assert!(resolve(Freshness::Day, never()).is_err());
        assert_eq!(resolve(Freshness::Day, Ok(versions("1"))).expect("asked"), versions("1"));
        assert_eq!(resolve(Freshness::Day, Ok(versions("2"))).expect("kept"), versions("1"));
        assert_eq!(resolve(Freshness::Now, Ok(versions("2"))).expect("asked"), versions("2"));
        assert_eq!(resolve(Freshness::Offline, never()).expect("kept"), versions("2"));
        assert!(resolve(Freshness::Now, never()).is_err());

        // A day later.
        let path = path(&context, &recipe).expect("path");
        let mut answer: Answer = serde_json::from_slice(&fs::read(&path).expect("read")).expect("json");
        answer.asked -= HOLDS.as_secs() + 1;
        fs::write(&path, serde_json::to_vec(&answer).expect("json")).expect("write");
        assert_eq!(resolve(Freshness::Any, never()).expect("any"), versions("2"));
        assert_eq!(resolve(Freshness::Day, never()).expect("no network"), versions("2"));
        assert_eq!(resolve(Freshness::Day, Ok(versions("3"))).expect("asked"), versions("3"));
    }

    #[test]
    fn another_question_has_another_answer() {
        let directory = tempfile::tempdir().expect("tempdir");
        let context = context(&directory);
        let one = path(&context, &recipe("\"bash\"")).expect("path");
        assert_eq!(one, path(&context, &recipe("\"bash\"")).expect("path"));
        assert_ne!(one, path(&context, &recipe("\"bash\", \"jq\"")).expect("path"));
    }

    #[test]
    fn ages_are_told_in_words() {
        let ago_seconds = |seconds| ago(Duration::from_secs(seconds));
        assert_eq!(ago_seconds(59), "0 minutes ago");
        assert_eq!(ago_seconds(7200), "2 hours ago");
        assert_eq!(ago_seconds(3 * 86400), "3 days ago");
    }
}
