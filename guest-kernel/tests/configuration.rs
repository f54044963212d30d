//! The real fragment, forbidden list and patches, and the rules by which a configuration is judged.

use std::collections::BTreeMap;

use hayfork_guest_kernel::{
    Deviation, Flavour, Identity, ParseError, Setting, check, inputs_key, parse_config, parse_forbidden,
    parse_fragment,
};

fn value(text: &str) -> Setting {
    Setting::Value(text.to_owned())
}

fn fragment() -> BTreeMap<String, Setting> {
    parse_fragment(Flavour::Plain.fragment()).expect("the fragment parses")
}

fn forbidden() -> Vec<String> {
    parse_forbidden(Flavour::Plain.forbidden()).expect("the forbidden list parses")
}

/// The configuration that fulfils the fragment to the letter.
fn ideal() -> BTreeMap<String, Setting> {
    fragment()
}

#[test]
fn the_fragment_and_the_forbidden_list_do_not_contradict_each_other() {
    let fragment = fragment();
    for symbol in forbidden() {
        assert!(
            !matches!(fragment.get(&symbol), Some(Setting::Value(_))),
            "{symbol} is both wanted and forbidden"
        );
        assert!(!fragment.contains_key(&symbol), "{symbol} is in both files; the forbidden list is enough");
    }
}

#[test]
fn the_fragment_builds_everything_in() {
    for (symbol, setting) in fragment() {
        assert_ne!(setting, value("m"), "{symbol}");
        assert_ne!(setting, value("n"), "{symbol}: write `# {symbol} is not set`");
    }
}

#[test]
fn what_the_agent_and_the_drivers_need_is_wanted() {
    let fragment = fragment();
    for name in [
        "VIRTIO_MMIO_CMDLINE_DEVICES",
        "VIRTIO_BLK",
        "VIRTIO_CONSOLE",
        "VIRTIO_VSOCKETS",
        "VIRTIO_NET",
        "HW_RANDOM_VIRTIO",
        "EROFS_FS_ZIP",
        "TMPFS_QUOTA",
        "OVERLAY_FS",
        "MEMCG",
        "CGROUP_PIDS",
        "PSI",
        "SECCOMP_FILTER",
        "PID_NS",
        "UNIX",
        "INET",
        "IPV6",
        "SYSVIPC",
        "POSIX_MQUEUE",
        "ZRAM",
        "PVH",
        "X86_MPPARSE",
        "SERIAL_8250_CONSOLE",
        "VSOCKETS",
        "KVM_GUEST",
        "PTP_1588_CLOCK_KVM",
        "SMP",
        "STACKPROTECTOR_STRONG",
        "HARDENED_USERCOPY",
        "INIT_STACK_ALL_ZERO",
        "LIST_HARDENED",
        "FORTIFY_SOURCE",
    ] {
        assert_eq!(fragment.get(&format!("CONFIG_{name}")), Some(&value("y")), "{name}");
    }
}

#[test]
fn what_user_code_must_not_reach_is_forbidden() {
    let forbidden = forbidden();
    for name in [
        "MODULES",
        "PCI",
        "ACPI",
        "IO_URING",
        "BPF_SYSCALL",
        "KEXEC",
        "DEVMEM",
        "USER_NS",
        "USERFAULTFD",
        "KEYS",
        "IA32_EMULATION",
        "MODIFY_LDT_SYSCALL",
        "X86_VSYSCALL_EMULATION",
        "PACKET",
        "DEBUG_FS",
    ] {
        assert!(forbidden.contains(&format!("CONFIG_{name}")), "{name}");
    }
}

#[test]
fn a_fulfilled_wish_has_no_deviation() {
    assert_eq!(check(&fragment(), &forbidden(), &ideal()), []);
}

#[test]
fn flavours_are_known_by_their_names() {
    for flavour in Flavour::ALL {
        assert_eq!(flavour.name().parse(), Ok(*flavour));
        assert_eq!(serde_json::to_string(flavour).expect("text"), format!("{:?}", flavour.name()));
    }
    assert!("hvf".parse::<Flavour>().is_err());
}

#[test]
fn the_plain_kernel_is_what_the_fragment_says() {
    assert_eq!(Flavour::Plain.differences(), None);
    assert_eq!(Flavour::Plain.settings(), Ok(fragment()));
}

#[test]
fn the_pvm_kernel_differs_in_what_its_own_fragment_says_and_in_nothing_else() {
    let differences = parse_fragment(Flavour::Pvm.differences().expect("some")).expect("parses");
    let settings = Flavour::Pvm.settings().expect("parses");
    for (symbol, setting) in &differences {
        assert_ne!(fragment().get(symbol), Some(setting), "{symbol} says what the common fragment says");
        assert_eq!(settings.get(symbol), Some(setting), "{symbol}");
    }
    for (symbol, setting) in fragment() {
        if !differences.contains_key(&symbol) {
            assert_eq!(settings.get(&symbol), Some(&setting), "{symbol}");
        }
    }
    for symbol in forbidden() {
        assert!(!differences.contains_key(&symbol), "{symbol}");
    }
    // What would hang or be wrong there: hypercalls, and page tables without the kernel in them.
    for name in ["PTP_1588_CLOCK_KVM", "MITIGATION_PAGE_TABLE_ISOLATION", "CPU_MITIGATIONS"] {
        assert_eq!(settings.get(&format!("CONFIG_{name}")), Some(&Setting::NotSet), "{name}");
    }
    // No mitigation is left that its menu's absence would turn off without a word.
    for symbol in settings.keys().filter(|symbol| symbol.starts_with("CONFIG_MITIGATION_")) {
        assert_eq!(settings.get(symbol), Some(&Setting::NotSet), "{symbol}");
    }
}

#[test]
fn each_wanted_option_that_went_missing_is_named() {
    let mut config = ideal();
    config.remove("CONFIG_MEMCG");
    config.insert("CONFIG_SECCOMP_FILTER".to_owned(), Setting::NotSet);
    config.insert("CONFIG_HZ_250".to_owned(), value("m"));
    config.insert("CONFIG_RELOCATABLE".to_owned(), value("y"));
    let deviations = check(&fragment(), &forbidden(), &config);
    let symbols: Vec<&str> = deviations
        .iter()
        .map(|deviation| match deviation {
            Deviation::Wanted { symbol, .. } | Deviation::Forbidden { symbol, .. } => symbol.as_str(),
        })
        .collect();
    assert_eq!(symbols, ["CONFIG_HZ_250", "CONFIG_MEMCG", "CONFIG_RELOCATABLE", "CONFIG_SECCOMP_FILTER"]);
    let texts: Vec<String> = deviations.iter().map(ToString::to_string).collect();
    assert_eq!(texts[0], "CONFIG_HZ_250: the fragment asks for y, the configuration has m");
    assert!(texts[1].contains("no such option"), "{}", texts[1]);
    assert_eq!(texts[2], "CONFIG_RELOCATABLE: the fragment asks for not set, the configuration has y");
}

#[test]
fn each_forbidden_option_that_came_back_is_named() {
    let mut config = ideal();
    config.insert("CONFIG_IO_URING".to_owned(), value("y"));
    config.insert("CONFIG_MODULES".to_owned(), value("m"));
    config.insert("CONFIG_KEYS".to_owned(), Setting::NotSet);
    let texts: Vec<String> =
        check(&fragment(), &forbidden(), &config).iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "CONFIG_MODULES: is forbidden, but something selected it (=m)",
            "CONFIG_IO_URING: is forbidden, but something selected it (=y)",
        ]
    );
}

#[test]
fn a_configuration_is_read_as_kconfig_writes_it() {
    let config = parse_config(
        "#\n# Automatically generated file; DO NOT EDIT.\n#\nCONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=\"a=b c\"\n\
         CONFIG_D=0x200\n\n# end of x\nnonsense\nCONFIG_E=\n",
    );
    let wanted: BTreeMap<String, Setting> = [
        ("CONFIG_A".to_owned(), value("y")),
        ("CONFIG_B".to_owned(), Setting::NotSet),
        ("CONFIG_C".to_owned(), value("\"a=b c\"")),
        ("CONFIG_D".to_owned(), value("0x200")),
    ]
    .into();
    assert_eq!(config, wanted);
}

#[test]
fn a_fragment_line_that_means_nothing_is_refused() {
    for text in [
        "CONFIG_A",
        "CONFIG_A=",
        "CONFIG_A y",
        "A=y",
        "CONFIG_A-B=y",
        "# CONFIG_A is unset",
        "CONFIG_=y",
        " CONFIG_A=y",
    ] {
        let error = parse_fragment(&format!("# comment\n\n{text}\n")).expect_err(text);
        assert_eq!(error, ParseError::Form { line: 3, text: text.to_owned() });
    }
    assert!(parse_fragment("# why\n#\nCONFIG_A=y   \n# CONFIG_B is not set\n").is_ok());
}

#[test]
fn a_symbol_given_twice_is_refused() {
    for second in ["CONFIG_A=y", "CONFIG_A=\"x\"", "# CONFIG_A is not set"] {
        let error =
            parse_fragment(&format!("CONFIG_A=y\n# CONFIG_B is not set\n{second}\n")).expect_err(second);
        assert_eq!(error, ParseError::Twice { line: 3, first: 1, symbol: "CONFIG_A".to_owned() });
    }
    let error = parse_forbidden("CONFIG_A\n# why\nCONFIG_A\n").expect_err("twice");
    assert_eq!(error, ParseError::Twice { line: 3, first: 1, symbol: "CONFIG_A".to_owned() });
    assert!(matches!(parse_forbidden("CONFIG_A=y\n"), Err(ParseError::Form { line: 1, .. })));
}

fn identity() -> Identity {
    Identity {
        package: Some("linux-source-6.12".to_owned()),
        version: "6.12.9-1".to_owned(),
        digest: "sha256:00".to_owned(),
    }
}

#[test]
fn a_key_depends_on_each_part_of_the_source_and_on_nothing_else() {
    let key = inputs_key(Flavour::Plain, &identity());
    assert_eq!(key, inputs_key(Flavour::Plain, &identity()), "equal inputs give equal keys");
    assert_eq!(key.len(), 32);
    assert!(key.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)), "{key}");

    let mut others = vec![key, inputs_key(Flavour::Pvm, &identity())];
    for change in [
        |identity: &mut Identity| identity.package = None,
        |identity: &mut Identity| identity.version.push('x'),
        |identity: &mut Identity| identity.digest.push('x'),
        // The same characters, cut differently between two fields.
        |identity: &mut Identity| {
            identity.version.push_str("sha256:");
            identity.digest = identity.digest.replace("sha256:", "");
        },
    ] {
        let mut changed = identity();
        change(&mut changed);
        others.push(inputs_key(Flavour::Plain, &changed));
    }
    let count = others.len();
    others.sort();
    others.dedup();
    assert_eq!(others.len(), count);
}

#[test]
fn each_patch_says_why_and_is_in_order() {
    for flavour in Flavour::ALL {
        assert!(flavour.patches().map(|patch| patch.name).is_sorted());
        for patch in flavour.patches() {
            let (why, rest) = patch.text.split_once("\n--- a/").expect("a header and a first file");
            assert!(why.starts_with("SPDX-License-Identifier: GPL-2.0\n"), "{}", patch.name);
            assert!(why.lines().count() >= 4, "{}: no reason given", patch.name);
            assert!(rest.contains("\n+++ b/") && rest.contains("\n@@ "), "{}", patch.name);
            assert!(patch.text.ends_with('\n'), "{}", patch.name);
        }
    }
}

#[test]
fn the_pvm_patches_state_their_licence_and_limits_and_leave_the_plain_kernel_alone() {
    let first = Flavour::Pvm.patches().find(|patch| patch.name.starts_with("pvm/")).expect("patches");
    for words in
        ["derived work of\nLinux", "boots on kvm_pvm and nowhere else", "virtual machine is the only one"]
    {
        assert!(first.text.contains(words), "{words}");
    }
    assert!(Flavour::Plain.patches().all(|patch| !patch.name.contains('/')));
    assert!(Flavour::Plain.patches().eq(Flavour::Pvm.patches().take(Flavour::Plain.patches().count())));
}
