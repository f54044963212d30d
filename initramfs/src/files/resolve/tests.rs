use super::*;

struct Bench {
    folder: tempfile::TempDir,
    places: Places,
}

fn bench() -> Bench {
    let folder = tempfile::tempdir().unwrap();
    for name in ["home", "shared", "outside"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let places = Places::open(&path("home"), &[&path("shared"), "/does/not/exist"]).unwrap();
    Bench { folder, places }
}

impl Bench {
    fn code(&self, path: &str) -> Option<FailureCode> {
        self.places.locate(path).and_then(|l| l.open(OFlags::PATH)).err().map(|f| f.code)
    }
}

#[test]
fn components_are_compared_not_characters() {
    let bench = bench();
    let base = bench.folder.path().to_str().unwrap();
    std::fs::create_dir(bench.folder.path().join("home2")).unwrap();
    assert_eq!(bench.code(&format!("{base}/home")), None);
    assert_eq!(bench.code(&format!("{base}//./home/.//")), None);
    assert_eq!(bench.code(&format!("{base}/shared")), None);
    assert_eq!(bench.code(&format!("{base}/home2")), Some(FailureCode::BadPath));
    assert_eq!(bench.code(base), Some(FailureCode::BadPath));
    assert_eq!(bench.code("/"), Some(FailureCode::BadPath));
}

#[test]
fn a_path_cannot_leave_its_folder() {
    let bench = bench();
    std::fs::create_dir_all(bench.folder.path().join("home/a/b")).unwrap();
    std::os::unix::fs::symlink("/", bench.folder.path().join("home/root")).unwrap();
    std::os::unix::fs::symlink("..", bench.folder.path().join("home/up")).unwrap();
    std::os::unix::fs::symlink("loop", bench.folder.path().join("home/loop")).unwrap();
    for path in ["a/..", "a/b/../..", "a/../a/b", ".", ""] {
        assert_eq!(bench.code(path), None, "{path}");
    }
    for path in ["..", "a/../..", "root", "root/etc", "up", "up/home", "a/b/../../..", "loop"] {
        assert_eq!(bench.code(path), Some(FailureCode::BadPath), "{path}");
    }
    assert_eq!(bench.code("none"), Some(FailureCode::NotFound));
}

#[test]
fn parents_are_made_one_by_one() {
    let bench = bench();
    let entry = bench.places.locate("x/y/z/file").unwrap().entry_with_parents().unwrap();
    assert_eq!(entry.name, "file");
    assert!(bench.folder.path().join("home/x/y/z").is_dir());
    std::fs::write(bench.folder.path().join("home/x/file"), "").unwrap();
    let failed = bench.places.locate("x/file/below/f").unwrap().entry_with_parents().unwrap_err();
    assert_eq!(failed.code, FailureCode::WrongType);
    std::os::unix::fs::symlink("../outside", bench.folder.path().join("home/away")).unwrap();
    let failed = bench.places.locate("away/new/f").unwrap().entry_with_parents().unwrap_err();
    assert_eq!(failed.code, FailureCode::BadPath);
    assert_eq!(std::fs::read_dir(bench.folder.path().join("outside")).unwrap().count(), 0);
}

#[test]
fn the_folder_itself_and_dots_are_no_entries() {
    let bench = bench();
    for path in ["", ".", "./.", "..", "a/.."] {
        assert_eq!(
            bench.places.locate(path).unwrap().entry().unwrap_err().code,
            FailureCode::BadPath,
            "{path:?}"
        );
    }
}

#[test]
fn folders_and_links_that_lead_out_are_not_replaced() {
    let bench = bench();
    let home = bench.folder.path().join("home");
    std::fs::create_dir(home.join("folder")).unwrap();
    std::fs::write(home.join("file"), "").unwrap();
    std::os::unix::fs::symlink("file", home.join("in")).unwrap();
    std::os::unix::fs::symlink("nothing", home.join("dangling")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", home.join("out")).unwrap();
    let check = |path: &str| {
        let located = bench.places.locate(path).unwrap();
        let entry = located.entry().unwrap();
        located.check_replaceable(&entry).err().map(|failure| failure.code)
    };
    for path in ["file", "new", "in", "dangling"] {
        assert_eq!(check(path), None, "{path}");
    }
    assert_eq!(check("folder"), Some(FailureCode::WrongType));
    assert_eq!(check("out"), Some(FailureCode::BadPath));
}
