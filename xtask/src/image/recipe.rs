//! The recipe of a root image, `initramfs/images/<language>/recipe.toml`.
//!
//! ```toml
//! [image]
//! language = "python"            # the folder's name
//! description = "one line"
//!
//! [apt]                          # Debian packages; what they depend on comes by itself
//! suite = "trixie"
//! packages = ["python3", "bash"]
//!
//! [[npm]]                        # optional, any number: files out of a package of the npm registry
//! package = "@scope/name"
//! version = "latest"             # a tag or an exact version; "latest" if left out
//! install = [{ from = "bin/tool", to = "/usr/bin/tool", mode = 0o755 }]    # `from = "dir/"`: all files below
//!
//! [build]                        # optional
//! run = ["command line"]         # by /bin/sh as root inside the installed system, in this order
//! files = [{ from = "name", to = "/etc/name", mode = 0o644 }]    # files of the recipe's folder
//! symlinks = [{ path = "/usr/bin/a", target = "b" }]
//!
//! [cleanup]                      # optional, beside what every image goes without (rootfs.rs)
//! packages = ["dpkg"]            # all files of these installed packages
//! remove = ["/usr/share/x", "/usr/lib/y/*"]    # each must exist; `/*` at the end: all in it
//!
//! [erofs]                        # optional
//! compression = "lz4hc,12"       # algorithm and level for mkfs.erofs
//! cluster = 16384                # bytes compressed together, a multiple of 4096
//! uncompressed = ["/usr/bin/x", "/usr/lib/libc.so*"]    # files that every run reads; `*` at the end: any rest
//! ```

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

/// Name of the file in a recipe's folder.
pub(crate) const FILE: &str = "recipe.toml";

/// A whole recipe.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recipe {
    pub(crate) image: Image,
    pub(crate) apt: Apt,
    #[serde(default)]
    pub(crate) npm: Vec<Npm>,
    #[serde(default)]
    pub(crate) build: Build,
    #[serde(default)]
    pub(crate) cleanup: Cleanup,
    #[serde(default)]
    pub(crate) erofs: Erofs,
}

/// What the image is.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Image {
    pub(crate) language: String,
    pub(crate) description: String,
}

/// Debian packages.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Apt {
    pub(crate) suite: String,
    pub(crate) packages: Vec<String>,
}

/// A package of the npm registry.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Npm {
    pub(crate) package: String,
    #[serde(default = "latest")]
    pub(crate) version: String,
    pub(crate) install: Vec<Copy>,
}

/// A file that is copied into the image.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Copy {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) mode: u32,
}

/// Steps after installation.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Build {
    pub(crate) run: Vec<String>,
    pub(crate) files: Vec<Copy>,
    pub(crate) symlinks: Vec<Symlink>,
}

/// A symbolic link.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Symlink {
    pub(crate) path: String,
    pub(crate) target: String,
}

/// What is removed at the end.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Cleanup {
    pub(crate) packages: Vec<String>,
    pub(crate) remove: Vec<String>,
}

/// How the file system is written.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Erofs {
    pub(crate) compression: String,
    pub(crate) cluster: u32,
    pub(crate) uncompressed: Vec<String>,
}

impl Default for Erofs {
    fn default() -> Self {
        Self { compression: "lz4hc,12".to_owned(), cluster: 16_384, uncompressed: Vec::new() }
    }
}

fn latest() -> String {
    "latest".to_owned()
}

impl Recipe {
    /// Reads the recipe of a folder.
    ///
    /// # Errors
    /// The file is missing, is no TOML, has unknown or missing fields, or fields that make no sense.
    pub(crate) fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let recipe = Self::parse(&text).with_context(|| format!("cannot use {}", path.display()))?;
        ensure!(
            folder.file_name().is_some_and(|name| name == recipe.image.language.as_str()),
            "{} names the language {:?}, which is not its folder's name",
            path.display(),
            recipe.image.language
        );
        Ok(recipe)
    }

    /// Reads a recipe's text.
    ///
    /// # Errors
    /// As [`Recipe::load`].
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let recipe: Self = toml::from_str(text)?;
        let language = &recipe.image.language;
        ensure!(
            !language.is_empty()
                && language.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()),
            "language {language:?} is not made of lower-case letters and digits"
        );
        ensure!(is_word(&recipe.apt.suite, b"-"), "{:?} is no name of a suite", recipe.apt.suite);
        for name in recipe.apt.packages.iter().chain(&recipe.cleanup.packages) {
            ensure!(is_word(name, b"+-."), "{name:?} is no name of a Debian package");
        }
        for npm in &recipe.npm {
            let name = npm.package.strip_prefix('@').unwrap_or(&npm.package);
            ensure!(is_word(name, b"-_./"), "{:?} is no name of an npm package", npm.package);
            ensure!(is_word(&npm.version, b"-+."), "{:?} is neither a tag nor an exact version", npm.version);
        }
        for copy in recipe.npm.iter().flat_map(|npm| &npm.install).chain(&recipe.build.files) {
            let from = copy.from.strip_suffix('/').unwrap_or(&copy.from);
            ensure!(is_inside(from), "{:?} does not stay in its folder", copy.from);
            ensure!(is_absolute(&copy.to), "{:?} is not an absolute path", copy.to);
            ensure!(
                copy.mode <= 0o777,
                "mode {:o} of {:?} has more than permission bits",
                copy.mode,
                copy.to
            );
        }
        let paths = recipe.build.symlinks.iter().map(|link| &link.path);
        for path in paths.chain(&recipe.cleanup.remove).chain(&recipe.erofs.uncompressed) {
            ensure!(is_absolute(path), "{path:?} is not an absolute path");
        }
        ensure!(
            recipe.erofs.cluster > 0
                && recipe.erofs.cluster.is_multiple_of(4096)
                && recipe.erofs.cluster <= 1 << 20,
            "cluster = {} is no multiple of 4096 up to 1 MiB",
            recipe.erofs.cluster
        );
        Ok(recipe)
    }
}

/// Begins with a letter or digit and goes on with these or `more`.
fn is_word(text: &str, more: &[u8]) -> bool {
    text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
}

/// `/a/b`, without `.`, `..` and empty parts.
fn is_absolute(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(is_inside)
}

/// `a/b`, without `.`, `..` and empty parts.
fn is_inside(path: &str) -> bool {
    path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        [image]
        language = "shell"
        description = "a shell"
        [apt]
        suite = "trixie"
        packages = ["bash", "libstdc++6"]
    "#;

    #[test]
    fn a_small_recipe_has_defaults() {
        let recipe = Recipe::parse(SMALL).expect("parses");
        assert_eq!(recipe.apt.packages, ["bash", "libstdc++6"]);
        assert!(recipe.npm.is_empty() && recipe.build.run.is_empty() && recipe.cleanup.remove.is_empty());
        assert_eq!((recipe.erofs.compression.as_str(), recipe.erofs.cluster), ("lz4hc,12", 16_384));
    }

    #[test]
    fn every_field_is_read() {
        let recipe = Recipe::parse(&format!(
            r#"{SMALL}
            [[npm]]
            package = "@oven/bun"
            install = [{{ from = "bin/bun", to = "/usr/bin/bun", mode = 0o755 }}]
            [build]
            run = ["true"]
            files = [{{ from = "profile", to = "/etc/profile", mode = 0o644 }}]
            symlinks = [{{ path = "/usr/bin/bunx", target = "bun" }}]
            [cleanup]
            packages = ["dpkg"]
            remove = ["/usr/share/doc", "/var/cache/*"]
            [erofs]
            cluster = 65536
            uncompressed = ["/usr/bin/bun"]
            "#
        ))
        .expect("parses");
        assert_eq!(recipe.npm[0].version, "latest");
        assert_eq!(recipe.npm[0].install[0].mode, 0o755);
        assert_eq!(recipe.build.files[0].to, "/etc/profile");
        assert_eq!(recipe.build.symlinks[0].target, "bun");
        assert_eq!(recipe.cleanup.remove[1], "/var/cache/*");
        assert_eq!((recipe.erofs.compression.as_str(), recipe.erofs.cluster), ("lz4hc,12", 65_536));
        assert_eq!(recipe.erofs.uncompressed, ["/usr/bin/bun"]);
    }

    #[test]
    fn mistakes_are_named() {
        for (wrong, right, named) in [
            ("language = \"Shell/x\"", "language = \"shell\"", "Shell/x"),
            ("suite = \"-o\"", "suite = \"trixie\"", "-o"),
            ("packages = [\"bash,vim\"]", "packages = [\"bash\", \"libstdc++6\"]", "bash,vim"),
            ("packages = [\"--purge\"]", "packages = [\"bash\", \"libstdc++6\"]", "--purge"),
            ("suite = 13", "suite = \"trixie\"", "suite"),
        ] {
            let text = SMALL.replace(right, wrong);
            assert_ne!(text, SMALL);
            let error = format!("{:#}", Recipe::parse(&text).expect_err(wrong));
            assert!(error.contains(named), "{error}");
        }
        for more in [
            "[cleanup]\nremove = [\"usr/share\"]",
            "[cleanup]\nremove = [\"/usr/../etc\"]",
            "[build]\nfiles = [{ from = \"../x\", to = \"/x\", mode = 0o644 }]",
            "[build]\nfiles = [{ from = \"x\", to = \"/x\", mode = 0o4755 }]",
            "[build]\nsteps = [\"true\"]",
            "[erofs]\ncluster = 5000",
            "[erofs]\nuncompressed = [\"bun\"]",
            "[[npm]]\npackage = \"a b\"\ninstall = []",
            "[[npm]]\npackage = \"a\"\nversion = \"^1.0\"\ninstall = []",
        ] {
            assert!(Recipe::parse(&format!("{SMALL}\n{more}")).is_err(), "{more}");
        }
    }

    #[test]
    fn the_recipes_of_the_project_are_good() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../initramfs/images");
        for language in ["python", "javascript", "shell"] {
            let recipe = Recipe::load(&folder.join(language)).expect(language);
            assert!(recipe.apt.packages.iter().any(|name| name == "bash"), "{language}");
        }
    }
}
