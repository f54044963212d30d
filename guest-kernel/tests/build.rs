//! The whole builder over a stand-in for a kernel tree: it has the files that the patches touch, an `allnoconfig` that answers
//! as it is told to, and a `vmlinux` of one object. So everything is real but the minutes of compiling.
//!
//! These tests need what a kernel build needs (see `required_packages`), and say so when it is missing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::num::NonZero;
use std::path::Path;

use hayfork_guest_kernel::{Builder, Error, Flavour, Manifest, Source, Step, inputs_key};

/// `allnoconfig` that grants every wish, and a vmlinux that embeds what a kernel embeds of its surroundings.
const MAKEFILE: &str = r#"VERSION = 6
PATCHLEVEL = 12
SUBLEVEL = 99
EXTRAVERSION = -test

allnoconfig:
	@grep -E '^CONFIG_|is not set$$' $(KCONFIG_ALLCONFIG) > .config
	@$(TAMPER)

vmlinux:
	@echo "  HOSTCC  scripts/basic"
	@echo 'const char text[] = "$(KBUILD_BUILD_TIMESTAMP) $(KBUILD_BUILD_USER) $(KBUILD_BUILD_VERSION) $(ARCH) $(KCFLAGS)"; int main(void) { return text[0]; }' > main.c
	@echo "  CC      main.o"
	@gcc -c main.c -o main.o
	@echo "  AS      entry.o"
	@echo "  LD      vmlinux"
	@gcc main.o -o vmlinux
	@$(BREAK)
"#;

/// The old side of each hunk of each patch: the least that the patches apply to. Hunks of several patches to one file
/// stand one after the other.
fn write_patched_files(root: &Path) {
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for patch in Flavour::Pvm.patches() {
        let mut name = None;
        for line in patch.text.lines() {
            if let Some(path) = line.strip_prefix("--- ") {
                name = path.strip_prefix("a/");
            } else if let Some(name) = name
                && !line.starts_with("+++ ")
                && !line.starts_with("@@ ")
                && let Some(old) = line.strip_prefix(' ').or_else(|| line.strip_prefix('-'))
            {
                writeln!(files.entry(name).or_default(), "{old}").expect("string");
            }
        }
    }
    for (name, text) in files {
        write(root, name, &text);
    }
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("parent")).expect("folder");
    fs::write(path, text).expect("write");
}

/// A tree whose `allnoconfig` and `vmlinux` run these shell commands at their end.
fn tree(tamper: &str, broken: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    write(folder.path(), "Makefile", &format!("{MAKEFILE}\nTAMPER = {tamper}\nBREAK = {broken}\n"));
    write_patched_files(folder.path());
    folder
}

fn build(tree: &Path, out: &Path) -> Result<Manifest, Error> {
    build_flavour(Flavour::Plain, tree, out)
}

fn build_flavour(flavour: Flavour, tree: &Path, out: &Path) -> Result<Manifest, Error> {
    Builder::new(flavour).jobs(NonZero::<usize>::MIN).build(&Source::tree(tree)?, out, &mut |_| {})
}

/// What a failed build leaves behind.
fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("lists")
        .map(|entry| entry.expect("entry").file_name().into_string().expect("name"))
        .collect();
    names.sort();
    names
}

#[test]
fn a_build_leaves_three_files_that_fit_each_other() {
    let tree = tree("true", "true");
    let out = tempfile::tempdir().expect("folder");
    let source = Source::tree(tree.path()).expect("a tree");
    let before = source.identity();
    let mut steps = Vec::new();
    let mut last = 0;
    let mut objects = 0;
    let manifest = Builder::new(Flavour::Plain)
        .build(&source, out.path(), &mut |progress| {
            assert!(progress.percent() >= last, "{progress:?} after {last} %");
            last = progress.percent();
            if steps.last() != Some(&progress.step) {
                steps.push(progress.step);
            }
            if progress.step == Step::Compile {
                objects = progress.done;
            }
        })
        .expect("builds");

    assert_eq!(entries(out.path()), ["config", "manifest.json", "vmlinux"]);
    let kernel = fs::read(out.path().join("vmlinux")).expect("kernel");
    assert!(kernel.starts_with(b"\x7fELF"));
    assert!(!String::from_utf8_lossy(&kernel).contains(".symtab"), "stripped");
    assert_eq!(manifest.bytes, kernel.len() as u64);
    assert_eq!(manifest.blake3, blake3::hash(&kernel).to_hex().as_str());
    let config = fs::read(out.path().join("config")).expect("config");
    assert_eq!(manifest.config_blake3, blake3::hash(&config).to_hex().as_str());
    assert_eq!(manifest.source, before);
    assert_eq!(manifest.inputs_key, inputs_key(Flavour::Plain, &before));
    assert_eq!(manifest.source_line(), "tree 6.12.99-test");
    assert!(manifest.compiler.contains("gcc"), "{}", manifest.compiler);
    let text = fs::read_to_string(out.path().join("manifest.json")).expect("manifest");
    assert_eq!(serde_json::from_str::<Manifest>(&text).expect("parses"), manifest);

    assert_eq!(steps, [Step::Unpack, Step::Configure, Step::Compile, Step::Finish]);
    assert_eq!((last, objects), (100, 2), "CC and AS count, HOSTCC and LD do not");
    let strings = String::from_utf8_lossy(&kernel);
    assert!(strings.contains("Thu Jan  1 00:00:00 UTC 1970 hayfork 1 x86_64 "), "what is embedded is fixed");
    assert_eq!(
        Source::tree(tree.path()).expect("a tree").identity(),
        before,
        "the caller's tree is only read"
    );
}

#[test]
fn two_builds_give_the_same_bytes() {
    let tree = tree("true", "true");
    let (one, two) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    assert_eq!(
        build(tree.path(), one.path()).expect("builds"),
        build(tree.path(), two.path()).expect("builds")
    );
    // And again over the files of an earlier build.
    build(tree.path(), two.path()).expect("builds");
    for name in ["vmlinux", "config", "manifest.json"] {
        assert_eq!(
            fs::read(one.path().join(name)).expect("reads"),
            fs::read(two.path().join(name)).expect("reads"),
            "{name}"
        );
    }
}

#[test]
fn a_flavour_is_configured_and_patched_in_its_own_way() {
    // What was patched in is kept beside the kernel, so that it can be looked at.
    let kept = tempfile::tempdir().expect("folder");
    let copy = format!("cp -r arch kernel {}", kept.path().display());
    let tree = tree(&copy, "true");
    let source = Source::tree(tree.path()).expect("a tree").identity();
    let mut configurations = Vec::new();
    for flavour in [Flavour::Plain, Flavour::Pvm] {
        let out = tempfile::tempdir().expect("folder");
        let manifest = build_flavour(flavour, tree.path(), out.path()).expect("builds");
        assert_eq!(manifest.flavour, flavour);
        assert_eq!(manifest.inputs_key, inputs_key(flavour, &source));
        assert!(manifest.patches.iter().map(String::as_str).eq(flavour.patches().map(|patch| patch.name)));
        assert_eq!(kept.path().join("arch/x86/kernel/kpvm.c").exists(), flavour == Flavour::Pvm);
        configurations.push(fs::read_to_string(out.path().join("config")).expect("config"));
    }
    let [plain, pvm] = &configurations[..] else { panic!("two") };
    assert!(plain.contains("CONFIG_MITIGATION_PAGE_TABLE_ISOLATION=y") && !plain.contains("KPVM"));
    assert!(pvm.contains("# CONFIG_MITIGATION_PAGE_TABLE_ISOLATION is not set\n"));
    assert!(pvm.contains("CONFIG_KPVM_GUEST=y\n") && pvm.contains("CONFIG_VIRTIO_BLK=y\n"));
}

#[test]
fn a_configuration_that_deviates_stops_the_build() {
    let tree = tree(
        "sed -i -e /CONFIG_MEMCG=/d -e s/CONFIG_PSI=y/CONFIG_PSI=n/ .config; echo CONFIG_IO_URING=y >> .config",
        "true",
    );
    let out = tempfile::tempdir().expect("folder");
    let error = build(tree.path(), out.path()).expect_err("deviates");
    let text = error.to_string();
    assert!(matches!(&error, Error::Configuration { list, .. } if list.len() == 3), "{text}");
    for symbol in ["CONFIG_MEMCG", "CONFIG_PSI", "CONFIG_IO_URING", "6.12.99-test"] {
        assert!(text.contains(symbol), "{text}");
    }
    assert_eq!(entries(out.path()), [""; 0]);
}

#[test]
fn a_failed_compilation_carries_its_last_lines() {
    let tree = tree("true", "echo 'main.c:1: error: something is wrong' >&2; exit 7");
    let out = tempfile::tempdir().expect("folder");
    let error = build(tree.path(), out.path()).expect_err("fails");
    let Error::Failed { step, tail, .. } = &error else { panic!("{error}") };
    assert_eq!(*step, Step::Compile);
    assert!(tail.contains("something is wrong") && tail.contains("CC      main.o"), "{tail}");
    assert_eq!(entries(out.path()), [""; 0]);
}

#[test]
fn a_patch_that_does_not_fit_is_named() {
    let tree = tree("true", "true");
    let patch = Flavour::Plain.patches().next().expect("a patch");
    write(tree.path(), "arch/x86/kernel/apic/apic.c", "something else\n");
    let out = tempfile::tempdir().expect("folder");
    let error = build(tree.path(), out.path()).expect_err("does not apply");
    assert!(matches!(error, Error::Patch { name, .. } if name == patch.name), "{error}");
}

#[test]
fn a_tree_that_changed_after_it_was_named_is_refused() {
    let tree = tree("true", "true");
    let source = Source::tree(tree.path()).expect("a tree");
    write(tree.path(), "kernel/new.c", "");
    let out = tempfile::tempdir().expect("folder");
    let outcome = Builder::new(Flavour::Plain).build(&source, out.path(), &mut |_| {});
    assert!(matches!(outcome, Err(Error::TreeChanged { .. })), "{outcome:?}");
}

#[test]
fn what_is_no_kernel_tree_is_refused() {
    let empty = tempfile::tempdir().expect("folder");
    let error = Source::tree(empty.path()).expect_err("empty");
    assert!(matches!(error, Error::NotATree { .. }), "{error}");

    let built = tree("true", "true");
    write(built.path(), ".config", "CONFIG_X=y\n");
    let error = Source::tree(built.path()).expect_err("configured");
    assert!(error.to_string().contains("make mrproper"), "{error}");
}
