//! The process around the guests: its children, its signals.

use std::time::Duration;

use hayfork_vmm::backend::{Backend, ExitKind};
use hayfork_vmm::monitor::settle;

use crate::host::unsafe_process::{Storm, in_a_child};
use crate::host::{Holdings, alone, open_descriptors, or_in_rig, wait_for};
use crate::tiny::{Act, Host, Script};

const PATIENCE: Duration = Duration::from_secs(20);

/// A guest that goes on saying something.
fn beats() -> Script {
    Script::saying("beat\n", &[Act::Spin { times: 3000 }, Act::Repeat { from: 0, times: 0 }])
}

#[test]
fn a_child_made_by_fork_has_an_inert_handle() {
    alone("process::a_child_made_by_fork_has_an_inert_handle", || {
        let Some(host) = Host::new() else { return };
        let machine = host.start(&beats());
        wait_for(PATIENCE, "a beat", || !machine.console_tail().is_empty());
        // A machine and a processor.
        assert_eq!(open_descriptors("kvm-v").len(), 2);
        let mut inherited = Some(machine);
        let code = in_a_child(|| {
            let Some(mut machine) = inherited.take() else { return 1 };
            let refused = machine.kill().is_err_and(|error| error.code() == "forked_process");
            let is_blind = machine.host_memory().is_none() && machine.try_exit().is_none();
            if !open_descriptors("kvm-v").is_empty() {
                return 4;
            }
            // Neither waits for threads that are not here nor touches anything of the parent's, nor closes what was opened here.
            let mine: Vec<_> = (0..64).filter_map(|_| std::fs::File::open("/dev/zero").ok()).collect();
            drop(machine);
            settle();
            if open_descriptors("/dev/zero").len() != mine.len() {
                return 5;
            }
            if Holdings::now().of_guests != 0 {
                return 2;
            }
            if refused && is_blind { 7 } else { 3 }
        });
        assert_eq!(code, 7);
        let mut machine = inherited.take().expect("only the child took it");
        let before = machine.console_tail().len();
        wait_for(PATIENCE, "another beat", || machine.console_tail().len() > before);
        assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed);
    });
}

/// The parent's dead machines wait to be taken apart when the child is made, and are no business of the child's: their
/// memory is not there, and what is in its place is the child's.
#[test]
fn a_child_has_machines_of_its_own() {
    alone("process::a_child_has_machines_of_its_own", || {
        let Some(host) = Host::new() else { return };
        let spec = host.spec("kernel", &beats());
        for round in 0..or_in_rig(4, 1) {
            // Some are in the queue, with the thread at work. The first that were made lie where a child would put its own.
            let mut machines: Vec<_> = (0..8).map(|_| host.launch(&spec)).collect();
            while machines.pop().is_some() {}
            let code = in_a_child(|| {
                let mut mine = host.launch(&spec);
                let whole = Holdings::now().of_guests;
                drop(host.launch(&spec));
                settle();
                if Holdings::now().of_guests != whole {
                    return 9;
                }
                wait_for(PATIENCE, "a beat in the child", || !mine.console_tail().is_empty());
                settle();
                let before = mine.console_tail().len();
                wait_for(PATIENCE, "another beat", || mine.console_tail().len() > before);
                let killed = mine.kill().is_ok_and(|report| report.kind == ExitKind::Killed);
                drop(mine);
                settle();
                if killed { 7 } else { 8 }
            });
            assert_eq!(code, 7, "round {round}");
        }
    });
}

/// What the parent's threads hold at the moment of a fork, the child must not wait for.
#[test]
fn a_child_made_while_machines_are_taken_apart_is_not_held_up() {
    alone("process::a_child_made_while_machines_are_taken_apart_is_not_held_up", || {
        let Some(host) = Host::new() else { return };
        let spec = host.spec("kernel", &beats());
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(std::sync::atomic::Ordering::SeqCst) {
                        drop(host.launch(&spec));
                    }
                });
            }
            for _ in 0..or_in_rig(60, 5) {
                let code = in_a_child(|| {
                    settle();
                    7
                });
                assert_eq!(code, 7);
            }
            over.store(true, std::sync::atomic::Ordering::SeqCst);
        });
    });
}

#[test]
fn storms_of_signals_do_not_disturb_guests() {
    alone("process::storms_of_signals_do_not_disturb_guests", || {
        let Some(host) = Host::new() else { return };
        let mut spec = host.spec("kernel", &beats());
        let short = host.spec("short", &Script::saying("done", &[Act::Reset]));
        let before = host.launch(&spec);
        spec.vcpus = 2;
        let storm = Storm::of(Duration::from_micros(500));
        // Started, run to its end and killed in the midst of it.
        let machine = host.launch(&spec);
        for _ in 0..or_in_rig(20, 3) {
            let report = host.launch(&short).wait(Some(PATIENCE)).expect("it ends");
            assert_eq!((report.kind, &report.console_tail[..]), (ExitKind::PowerOff, "done"), "{report:?}");
            let mut killed = host.monitor.launch(&spec).unwrap();
            assert_eq!(killed.kill().unwrap().kind, ExitKind::Killed);
        }
        for machine in [&before, &machine] {
            let said = machine.console_tail().len();
            wait_for(PATIENCE, "some beats", || machine.console_tail().len() > said + 20);
            assert_eq!(machine.try_exit(), None);
        }
        let weather = storm.weather();
        println!("{weather:?}");
        assert!(weather.handled > 100, "{weather:?}");
        assert_eq!(weather.misdirected, 0, "{weather:?}");
    });
}
