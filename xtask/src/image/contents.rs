//! The list of an image's contents, `contents.txt`: every package with its version and every file with its
//! size and digest. One record a line, so that two lists can be compared with diff:
//!
//! ```text
//! package <name> <version> <architecture>[ removed]      removed: its files were taken out again
//! npm <name> <version> <integrity>
//! dir <mode> <path>
//! file <mode> <bytes> <first 32 digits of BLAKE3> <path>
//! link <path> -> <target>
//! ```

use super::dpkg::Package;
use super::npm::NpmPackage;
use super::recipe::Recipe;
use super::rootfs::{Kind, Node};

/// Name of the list in an entry of the store.
pub(crate) const FILE: &str = "contents.txt";

/// The list as text.
pub(crate) fn describe(recipe: &Recipe, packages: &[Package], npm: &[NpmPackage], nodes: &[Node]) -> String {
    let mut text = format!(
        "# Root image {}: {}\n# Debian {} packages, npm packages, then every file.\n",
        recipe.image.language, recipe.image.description, recipe.apt.suite
    );
    for package in packages {
        let removed = if recipe.cleanup.packages.contains(&package.name) { " removed" } else { "" };
        line(
            &mut text,
            format_args!("package {} {} {}{removed}", package.name, package.version, package.architecture),
        );
    }
    for package in npm {
        line(&mut text, format_args!("npm {} {} {}", package.name, package.version, package.integrity));
    }
    for node in nodes {
        // Names may hold anything but NUL: what would break a line is escaped.
        let path = node.path.escape_debug();
        match &node.kind {
            Kind::Directory => line(&mut text, format_args!("dir {:04o} {path}", node.mode)),
            Kind::File { bytes, blake3 } => {
                let digest = blake3.get(..32).unwrap_or(blake3);
                line(&mut text, format_args!("file {:04o} {bytes} {digest} {path}", node.mode));
            }
            Kind::Link { target } => {
                line(&mut text, format_args!("link {path} -> {}", target.escape_debug()));
            }
        }
    }
    text
}

/// Appends a line.
fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    text.push_str(&content.to_string());
    text.push('\n');
}

/// The first lines in which two lists differ, for a message; empty if they are equal.
pub(crate) fn differences(one: &str, other: &str, most: usize) -> Vec<String> {
    let all = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    let (one, other) = (all(one), all(other));
    let mut lines: Vec<String> = one.difference(&other).map(|line| format!("- {line}")).collect();
    lines.extend(other.difference(&one).map(|line| format!("+ {line}")));
    lines.sort_by(|a, b| a[2..].cmp(&b[2..]));
    lines.truncate(most);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_record_is_written() {
        let recipe = Recipe::parse(
            "[image]\nlanguage = \"x\"\ndescription = \"an image\"\n[apt]\nsuite = \"trixie\"\npackages = [\"bash\"]\n\
             [cleanup]\npackages = [\"dpkg\"]\n",
        )
        .expect("recipe");
        let package =
            |name: &str| Package { name: name.into(), version: "1:2-3".into(), architecture: "amd64".into() };
        let npm = NpmPackage { name: "@a/b".into(), version: "1.0.0".into(), integrity: "sha512-x".into() };
        let node = |path: &str, mode, kind| Node { path: path.into(), mode, kind };
        let nodes = [
            node("/bin", 0o777, Kind::Link { target: "usr/bin".into() }),
            node("/tmp", 0o1777, Kind::Directory),
            node("/usr/a\nb", 0o644, Kind::File { bytes: 7, blake3: "0123456789abcdef".repeat(4) }),
        ];
        let text = describe(&recipe, &[package("bash"), package("dpkg")], &[npm], &nodes);
        assert_eq!(
            text.lines().skip(2).collect::<Vec<_>>(),
            [
                "package bash 1:2-3 amd64",
                "package dpkg 1:2-3 amd64 removed",
                "npm @a/b 1.0.0 sha512-x",
                "link /bin -> usr/bin",
                "dir 1777 /tmp",
                "file 0644 7 0123456789abcdef0123456789abcdef /usr/a\\nb",
            ]
        );
    }

    #[test]
    fn differences_are_found_on_both_sides() {
        assert!(differences("a\nb\n", "b\na\n", 9).is_empty());
        assert_eq!(differences("a\nb 1\n", "a\nb 2\nc\n", 9), ["- b 1", "+ b 2", "+ c"]);
        assert_eq!(differences("a\nb\nc\n", "", 2).len(), 2);
    }
}
