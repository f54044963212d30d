use super::*;
use crate::limits;

fn entry(name: &str, value: &str) -> Env {
    vec![(name.into(), value.into())]
}

#[test]
fn requests_and_events_round_trip() {
    let limit = OutputLimit { bytes: 10, keep: Keep::HeadAndTail };
    let request = Request::Execute(Execute {
        context: 3,
        language: Language::JavaScript,
        code: "1".into(),
        env: entry("A", "b"),
        stdin: true,
        last: true,
        timeout_ms: Some(30_000),
        stdout: limit,
        stderr: limit,
    });
    let bytes = postcard::to_allocvec(&request).unwrap();
    assert_eq!(postcard::from_bytes::<Request>(&bytes).unwrap(), request);
    // An older guest knows everything before it by the same number.
    let request = Request::SetClock { wall_clock_ns: 1 };
    let bytes = postcard::to_allocvec(&request).unwrap();
    assert_eq!((bytes.as_slice(), postcard::from_bytes::<Request>(&bytes).unwrap()), (&[14, 1][..], request));
    let request = Request::Watch { path: "a".into(), recursive: true };
    let bytes = postcard::to_allocvec(&request).unwrap();
    assert_eq!(
        (bytes.as_slice(), postcard::from_bytes::<Request>(&bytes).unwrap()),
        (&[15, 1, 97, 1][..], request)
    );
    // Those that were appended: what stood before keeps its number.
    assert_eq!(postcard::to_allocvec(&Event::Watching).unwrap(), [10]);
    assert_eq!(postcard::to_allocvec(&Control::Flush).unwrap(), [3]);
    assert_eq!(postcard::to_allocvec(&FailureCode::TooMany).unwrap(), [11]);
    let event = Event::Finished(Finished {
        status: Status::OutOfMemory,
        exit_code: 137,
        state_reset: true,
        spawn_us: 1,
        run_us: 2,
    });
    let bytes = postcard::to_allocvec(&event).unwrap();
    assert_eq!(postcard::from_bytes::<Event>(&bytes).unwrap(), event);
}

fn renew(hostname: &str) -> Renew {
    Renew { seed: [7; 32], machine_id: [1; 16], hostname: hostname.into() }
}

#[test]
fn a_renewal_round_trips_and_keeps_its_seed_to_itself() {
    let request = Request::Renew(renew("sandbox-1"));
    let bytes = postcard::to_allocvec(&request).unwrap();
    assert_eq!(postcard::from_bytes::<Request>(&bytes).unwrap(), request);
    // Appended to the enumeration: what stood before it keeps its number.
    assert_eq!((bytes[0], postcard::to_allocvec(&Request::Shutdown).unwrap()), (13, vec![12]));
    let shown = format!("{request:?}");
    assert!(shown.contains("sandbox-1") && !shown.contains('7'), "{shown}");
}

#[test]
fn renewals_are_checked() {
    for name in ["a", "Sandbox-1", "a.b-c.9", &"x".repeat(63)] {
        assert!(Request::Renew(renew(name)).validate().is_ok(), "{name:?}");
    }
    let long = format!("{}.{}", "x".repeat(63), "y");
    for name in ["", "-a", "a-", "a..b", ".a", "a.", "a b", "a_b", "ä", "a\0", "a\n", &"x".repeat(64), &long]
    {
        let failure = Request::Renew(renew(name)).validate().unwrap_err();
        assert_eq!(failure.code, FailureCode::BadRequest, "{name:?}");
        assert!(failure.message.len() < 400);
    }
    let blank = [Renew { seed: [0; 32], ..renew("a") }, Renew { machine_id: [0; 16], ..renew("a") }];
    for renew in blank {
        assert!(Request::Renew(renew).validate().is_err());
    }
}

#[test]
fn code_is_checked() {
    for blank in ["", " \n\t", "\u{feff}", "\u{feff}\n"] {
        assert_eq!(validate_code(blank).unwrap_err().code, FailureCode::BadRequest, "{blank:?}");
    }
    assert!(validate_code("print(1)\0").is_err());
    assert!(validate_code(&"x".repeat(limits::MAX_CODE)).is_ok());
    assert!(validate_code(&"x".repeat(limits::MAX_CODE + 1)).is_err());
    assert!(validate_code("# a comment alone").is_ok());
}

#[test]
fn paths_are_checked_in_bytes() {
    assert!(validate_path(&"ä".repeat(127)).is_ok());
    assert_eq!(validate_path(&"ä".repeat(128)).unwrap_err().code, FailureCode::BadPath);
    assert!(validate_path("a\0b").is_err());
    assert!(validate_path(&"a/".repeat(2048)).is_err());
    assert!(Request::Watch { path: String::new(), recursive: false }.validate().is_ok());
    assert!(Request::Watch { path: "a\0".into(), recursive: true }.validate().is_err());
}

#[test]
fn environment_names_that_change_program_starts_are_refused() {
    for name in ["LD_PRELOAD", "ld_audit", "PATH", "PythonPath", "BASH_ENV", "BASH_FUNC_ls"] {
        let failure = validate_env(&entry(name, "x")).unwrap_err();
        assert_eq!(failure.code, FailureCode::BadEnv);
        assert!(failure.message.contains(name), "{}", failure.message);
    }
    for name in ["", "1A", "A B", "A=B", "Ä", "A\0"] {
        assert!(validate_env(&entry(name, "x")).is_err(), "{name:?}");
    }
    assert!(validate_env(&entry("MY_VAR", "any\nbytes = fine ✓")).is_ok());
    assert!(validate_env(&entry("A", "\0")).is_err());
    assert!(validate_env(&entry("A", &"x".repeat(limits::MAX_ENV_VALUE + 1))).is_err());
}

#[test]
fn the_largest_valid_execution_fits_a_control_frame() {
    let env: Env = (0..limits::MAX_ENV_ENTRIES)
        .map(|i| (format!("{i:_>256}"), "x".repeat(limits::MAX_ENV_VALUE)))
        .collect();
    let limit = OutputLimit { bytes: u64::MAX, keep: Keep::Head };
    let request = Request::Execute(Execute {
        context: u32::MAX,
        language: Language::Python,
        code: "x".repeat(limits::MAX_CODE),
        env,
        stdin: true,
        last: false,
        timeout_ms: Some(u64::MAX),
        stdout: limit,
        stderr: limit,
    });
    request.validate().unwrap();
    assert!(postcard::to_allocvec(&request).unwrap().len() <= limits::MAX_CONTROL);
}

#[test]
fn commands_need_a_program() {
    let limit = OutputLimit { bytes: 1, keep: Keep::Head };
    let command = |argv: &[&str]| {
        Request::Command(Command {
            argv: argv.iter().map(ToString::to_string).collect(),
            cwd: None,
            env: vec![],
            user: User::Sandbox,
            stdin: false,
            timeout_ms: None,
            stdout: limit,
            stderr: limit,
        })
    };
    assert!(command(&[]).validate().is_err());
    assert!(command(&[""]).validate().is_err());
    assert!(command(&["ls", "a\0"]).validate().is_err());
    assert!(command(&["ls", ""]).validate().is_ok());
}
