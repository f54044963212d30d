use super::*;

fn all(path: &str) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn the_environment_is_the_default_with_changes_over_it() {
    let env = environment([("A", "1"), ("HOME", "/x"), ("A", "2")]);
    let get = |name: &str| {
        env.iter().filter(|(known, _)| known == name).map(|(_, v)| v.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(get("A"), ["2"]);
    assert_eq!(get("HOME"), ["/x"]);
    assert_eq!(get("USER"), ["user"]);
    assert_eq!(get("PATH"), [PATH]);
}

#[test]
fn programs_are_searched_in_order_unless_they_have_a_slash() {
    let found = candidates("tool").unwrap();
    assert_eq!(found.len(), PATH.split(':').count());
    assert_eq!(found[0].to_str().unwrap(), "/usr/local/bin/tool");
    assert_eq!(candidates("./tool").unwrap().len(), 1);
    assert!(candidates("a\0b").is_err());
}

#[test]
fn reports_carry_the_step_and_the_errno() {
    for (step, errno, text) in [(0, Errno::PERM, "begin a session"), (7, Errno::NOENT, "run the program")] {
        let mut record = [0; child::RECORD];
        record[0] = step;
        record[1..].copy_from_slice(&errno.raw_os_error().to_le_bytes());
        let error = child::decode(record);
        assert_eq!((error.action.as_ref(), error.errno), (text, errno));
    }
}

#[test]
fn a_program_gets_what_the_plan_says() {
    let folder = tempfile::tempdir().unwrap();
    let out = std::fs::File::create(folder.path().join("out")).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let argv = ["sh", "-c", "printf '%s %s ' \"$ONLY\" \"$#\"; pwd; env | grep -c ."].map(str::to_owned);
    let started = spawn(&Plan {
        walls: None,
        cgroup: None,
        argv: &argv,
        env: &[("ONLY".to_owned(), "this".to_owned())],
        cwd: folder.path().to_str().unwrap(),
        rights: Rights::User,
        stdio: [null.as_fd(), out.as_fd(), null.as_fd()],
    })
    .unwrap();
    let status = rustix::process::waitpid(Some(started.pid), rustix::process::WaitOptions::empty())
        .unwrap()
        .unwrap()
        .1;
    assert_eq!(status.exit_status(), Some(0));
    assert!(matches!(Start::read(&started.report), Start::Running));
    let path = folder.path().canonicalize().unwrap();
    let text = String::from_utf8(all(folder.path().join("out").to_str().unwrap())).unwrap();
    assert!(text.starts_with(&format!("this 0 {}\n", path.display())), "{text}");
}

#[test]
fn a_missing_folder_is_told_apart_from_a_missing_program() {
    let null = std::fs::File::open("/dev/null").unwrap();
    let run = |program: &str, cwd: &str| {
        let plan = Plan {
            walls: None,
            cgroup: None,
            argv: &[program.to_owned()],
            env: &[],
            cwd,
            rights: Rights::User,
            stdio: [null.as_fd(), null.as_fd(), null.as_fd()],
        };
        let started = spawn(&plan).unwrap();
        rustix::process::waitpid(Some(started.pid), rustix::process::WaitOptions::empty()).unwrap();
        match Start::read(&started.report) {
            Start::Failed(error) => error.action.into_owned(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(run("sh", "/no/such/folder"), "enter the working folder");
    assert_eq!(run("no-such-program", "/"), "run the program");
}
