//! Files out of packages of the npm registry, by the ordinary npm client, which verifies what it downloads
//! against the registry's integrity value.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::process;

use super::recipe::{Copy, Npm};
use super::rootfs::Root;

/// A package in the version that the registry offers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct NpmPackage {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Subresource integrity of the package's archive: `sha512-…`.
    pub(crate) integrity: String,
}

/// Asks the registry for the version that the recipe's tag stands for.
///
/// # Errors
/// npm is missing or fails, or there is no such version.
pub(crate) fn query(wanted: &Npm) -> Result<NpmPackage> {
    let specification = format!("{}@{}", wanted.package, wanted.version);
    let mut command = Command::new("npm");
    command.args(["view", &specification, "name", "version", "dist.integrity", "--json", "--loglevel=error"]);
    let answer =
        process::output(&mut command).with_context(|| format!("cannot ask npm about {specification}"))?;
    parse_view(&answer).with_context(|| format!("npm's answer about {specification} is not understood"))
}

fn parse_view(answer: &str) -> Result<NpmPackage> {
    #[derive(Deserialize)]
    struct View {
        name: String,
        version: String,
        #[serde(rename = "dist.integrity")]
        integrity: String,
    }
    let view: View = serde_json::from_str(answer)?;
    ensure!(view.integrity.starts_with("sha512-"), "integrity {:?} is no SHA-512", view.integrity);
    Ok(NpmPackage { name: view.name, version: view.version, integrity: view.integrity })
}

/// Downloads the package and copies the recipe's files into the image. `scratch` is an empty directory.
///
/// # Errors
/// npm fails, the archive is another one than the registry said, or a file is not in it.
pub(crate) fn install(root: &mut Root, package: &NpmPackage, copies: &[Copy], scratch: &Path) -> Result<()> {
    let specification = format!("{}@{}", package.name, package.version);
    let mut command = Command::new("npm");
    command.current_dir(scratch).args(["pack", &specification, "--json", "--loglevel=error"]);
    let answer = process::output(&mut command).with_context(|| format!("cannot download {specification}"))?;
    let answer: Value = serde_json::from_str(&answer).context("npm's answer is not understood")?;
    let integrity =
        string_field(&answer, "integrity").context("npm did not state the archive's integrity")?;
    ensure!(
        integrity == package.integrity,
        "the archive of {specification} has integrity {integrity}, the registry said {}",
        package.integrity
    );
    let mut archives = fs::read_dir(scratch)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "tgz"));
    let archive = archives.next().context("npm made no archive")?;
    copy_files(root, &archive, copies).with_context(|| format!("cannot install {specification}"))
}

/// Copies files out of a package's archive, whose paths begin with one directory (`package/` as a rule). A
/// `from` that ends with `/` is a directory: all files below it are copied to below `to`.
fn copy_files(root: &mut Root, archive: &Path, copies: &[Copy]) -> Result<()> {
    let mut found = vec![false; copies.len()];
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(archive)?));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let is_file = entry.header().entry_type().is_file();
        let path = entry.path()?.components().skip(1).collect::<PathBuf>();
        for (copy, found) in copies.iter().zip(&mut found) {
            let Ok(below) = path.strip_prefix(&copy.from) else { continue };
            let is_whole = below.as_os_str().is_empty();
            if is_whole == copy.from.ends_with('/') || (!is_whole && !is_file) {
                continue;
            }
            ensure!(is_file, "{} is no file", copy.from);
            let to = if is_whole { PathBuf::from(&copy.to) } else { Path::new(&copy.to).join(below) };
            let to = to.to_str().with_context(|| format!("{} is no UTF-8", to.display()))?;
            let directory = to.rsplit_once('/').map_or("", |(directory, _)| directory);
            if !root.host_path(directory).is_ok_and(|place| place.is_dir()) {
                root.directory(directory, 0o755)?;
            }
            root.file(to, copy.mode, &mut entry)?;
            *found = true;
            break;
        }
    }
    for (copy, found) in copies.iter().zip(found) {
        ensure!(found, "{} is not in the package", copy.from);
    }
    Ok(())
}

/// The first string field of that name, at any depth: npm's versions differ in how they nest the answer.
fn string_field<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    match value {
        Value::Object(fields) => fields
            .get(name)
            .and_then(Value::as_str)
            .or_else(|| fields.values().find_map(|value| string_field(value, name))),
        Value::Array(values) => values.iter().find_map(|value| string_field(value, name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn npms_answers_are_read() {
        let answer = r#"{"name": "@a/b", "version": "1.4.5", "dist.integrity": "sha512-abc=="}"#;
        let package = parse_view(answer).expect("parses");
        assert_eq!((package.name.as_str(), package.version.as_str()), ("@a/b", "1.4.5"));
        assert!(parse_view(r#"{"name": "x", "version": "1", "dist.integrity": "sha1-abc"}"#).is_err());
        assert!(parse_view(r#"[{"name": "x"}]"#).is_err());
        for nested in [r#"[{"integrity": "sha512-x"}]"#, r#"{"@a/b": {"size": 1, "integrity": "sha512-x"}}"#]
        {
            assert_eq!(
                string_field(&serde_json::from_str(nested).expect("json"), "integrity"),
                Some("sha512-x")
            );
        }
    }

    #[test]
    fn files_are_copied_out_of_an_archive() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("a.tgz");
        let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(
            File::create(&path).expect("file"),
            flate2::Compression::fast(),
        ));
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o600);
        header.set_cksum();
        builder.append_data(&mut header.clone(), "package/bin/tool", b"tool".as_slice()).expect("append");
        builder.append_data(&mut header, "package/other", b"rest".as_slice()).expect("append");
        builder.into_inner().expect("tar").finish().expect("gzip").flush().expect("flush");

        let mut root = Root::create(&directory.path().join("root")).expect("root");
        root.directory("/usr/bin", 0o755).expect("directory");
        let copy = |from: &str| Copy { from: from.into(), to: "/usr/bin/tool".into(), mode: 0o755 };
        copy_files(&mut root, &path, &[copy("bin/tool")]).expect("copies");
        assert_eq!(root.text("/usr/bin/tool").expect("text"), "tool");
        for missing in ["bin/none", "none/", "bin", "bin/tool/"] {
            let error = copy_files(&mut root, &path, &[copy(missing)]).expect_err("missing");
            assert!(error.to_string().contains(missing), "{error}");
        }
        let all = Copy { from: "bin/".into(), to: "/usr/lib/modules/x".into(), mode: 0o644 };
        copy_files(&mut root, &path, &[all]).expect("copies a directory");
        assert_eq!(root.text("/usr/lib/modules/x/tool").expect("text"), "tool");
    }
}
