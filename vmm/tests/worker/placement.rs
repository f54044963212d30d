//! Where machines run if nobody has said so: in this process up to a bound, beyond it in workers. Each test has a process of its own,
//! since seats are a process's.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use hayfork_vmm::backend::{Backend, ExitKind, ImageDigests, Machine, MachineSpec, Place};
use hayfork_vmm::placement::{Placement, PlacementOptions};
use hayfork_vmm::worker::WorkersOptions;
use rustix::process::{Pid, Signal, kill_process};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::fake;
use crate::host::{Holdings, alone, wait_for};
use crate::tiny::{self, Act, Host, Script};

const PATIENCE: Duration = Duration::from_secs(60);

fn placement(machines_in_process: usize) -> Placement {
    placement_with(machines_in_process, env!("CARGO_BIN_EXE_hayfork-worker").into())
}

fn placement_with(machines_in_process: usize, worker: PathBuf) -> Placement {
    let workers = WorkersOptions { binary: Some(worker) };
    Placement::new(PlacementOptions { machines_in_process, workers })
}

/// A guest that goes on saying something, with names for its files.
fn beats(host: &Host) -> MachineSpec {
    let script = Script::saying("beat\n", &[Act::Spin { times: 3000 }, Act::Repeat { from: 0, times: 0 }]);
    let mut spec = host.spec("kernel", &script);
    spec.digests = Some(digests(&spec));
    spec
}

fn digests(spec: &MachineSpec) -> ImageDigests {
    ImageDigests::of_files(&spec.kernel, &spec.initramfs, spec.root_image.as_deref()).unwrap()
}

/// Where it is, having seen that it goes on there.
fn place_of(machine: &dyn Machine) -> Place {
    let said = machine.console_tail().len();
    wait_for(PATIENCE, "a beat", || machine.console_tail().len() > said);
    assert!(machine.try_exit().is_none());
    assert_eq!(machine.process_id().is_some(), machine.place() == Place::Worker);
    machine.place()
}

/// Counts warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn machines_beyond_the_bound_have_workers_and_one_that_ends_makes_room() {
    alone("placement::machines_beyond_the_bound_have_workers_and_one_that_ends_makes_room", || {
        let Some(host) = Host::new() else { return };
        let placement = placement(2);
        let checked = placement.check().unwrap();
        assert_eq!((checked.place, checked.machines_in_process), (Place::ThisProcess, Some(2)));
        let spec = beats(&host);
        let launch = || placement.launch(&spec).unwrap();
        let (mut one, two, three, four) = (launch(), launch(), launch(), launch());
        let places = [&one, &two, &three, &four].map(|machine| place_of(&**machine));
        assert_eq!(places, [Place::ThisProcess, Place::ThisProcess, Place::Worker, Place::Worker]);

        // Killed here: there is room once it is given back.
        assert_eq!(one.kill().unwrap().kind, ExitKind::Killed);
        drop(one);
        let five = launch();
        assert_eq!(place_of(&*five), Place::ThisProcess);
        // Killed by somebody else: a worker was no seat, so nothing changes.
        let pid = i32::try_from(three.process_id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        assert_eq!(three.wait(Some(PATIENCE)).expect("it ends").kind, ExitKind::Crashed);
        drop(three);
        assert_eq!(place_of(&*launch()), Place::Worker);
        // Ended by itself, and given back.
        drop(two);
        let ending =
            placement.launch(&host.spec("ending", &Script::saying("said\n", &[Act::Reset]))).unwrap();
        assert_eq!(ending.place(), Place::ThisProcess);
        assert_eq!(ending.wait(Some(PATIENCE)).expect("it ends").kind, ExitKind::PowerOff);
        drop(ending);
        // One that cannot be made leaves its seat.
        let error = placement.launch(&host.spec_of(Path::new("/nonexistent/kernel"))).err().unwrap();
        assert_eq!(error.code(), "image_unreadable");
        assert_eq!(place_of(&*launch()), Place::ThisProcess);
        drop((four, five));
    });
}

#[test]
fn what_is_kept_in_either_place_goes_on_in_both() {
    alone("placement::what_is_kept_in_either_place_goes_on_in_both", || {
        let Some(host) = Host::new() else { return };
        let folder = tempfile::tempdir().unwrap();
        let placement = placement(1);
        let spec = beats(&host);
        let here = placement.launch(&spec).unwrap();
        let there = placement.launch(&spec).unwrap();
        assert_eq!((place_of(&*here), place_of(&*there)), (Place::ThisProcess, Place::Worker));
        let mut templates = Vec::new();
        for machine in [&here, &there] {
            let template = machine.capture().unwrap();
            // A clone's template has a layer of its own.
            let clone = template.restore().unwrap();
            assert_eq!(place_of(&*clone), Place::Worker);
            templates.push(clone.capture().unwrap());
            let file = folder.path().join("saved");
            template.save(&file, b"about it").unwrap();
            let root = spec.root_image.as_deref();
            let (loaded, about) = placement.load(&file, &digests(&spec), root).unwrap();
            assert_eq!(about, b"about it");
            templates.extend([template, loaded]);
        }
        drop((here, there));
        for template in &templates {
            let one = template.restore().unwrap();
            let two = template.restore().unwrap();
            assert_eq!((place_of(&*one), place_of(&*two)), (Place::ThisProcess, Place::Worker));
            let copy = one.capture().unwrap();
            drop(one);
            // One that is watched is like the others, and pages are made ahead in both places.
            let observed = template.restore_observed().unwrap();
            assert_eq!(place_of(&*observed), Place::ThisProcess);
            let pages = [4096, 3 * 4096].map(|offset| tiny::DATA + offset..tiny::DATA + offset + 4096);
            let warm = template.with_working_set([observed.working_set(), pages.to_vec()].concat());
            assert_eq!(place_of(&*warm.restore().unwrap()), Place::Worker);
            drop((two, observed));
            assert_eq!(place_of(&*warm.restore().unwrap()), Place::ThisProcess);
            // With what is made ahead, and without.
            copy.prepare().unwrap();
            let again = copy.restore().unwrap();
            copy.prepare().unwrap();
            assert_eq!(
                (place_of(&*again), place_of(&*copy.restore().unwrap())),
                (Place::ThisProcess, Place::Worker)
            );
        }
    });
}

#[test]
fn callers_at_once_never_go_beyond_the_bound() {
    const BOUND: usize = 3;
    alone("placement::callers_at_once_never_go_beyond_the_bound", || {
        let Some(host) = Host::new() else { return };
        let placements = [placement(BOUND), placement(BOUND)];
        let spec = beats(&host);
        for _ in 0..3 {
            let (all, here) = (Barrier::new(8), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for number in 0..8 {
                    let (all, here, spec) = (&all, &here, &spec);
                    // Two engines of one process share its seats.
                    let placement = &placements[number % 2];
                    scope.spawn(move || {
                        all.wait();
                        let machine = placement.launch(spec).unwrap();
                        if place_of(&*machine) == Place::ThisProcess {
                            here.fetch_add(1, Ordering::SeqCst);
                        }
                        all.wait();
                    });
                }
            });
            assert_eq!(here.load(Ordering::SeqCst), BOUND);
        }
    });
}

#[test]
fn without_workers_all_are_here_and_that_is_said_once() {
    alone("placement::without_workers_all_are_here_and_that_is_said_once", || {
        let Some(host) = Host::new() else { return };
        let folder = tempfile::tempdir().unwrap();
        let spec = beats(&host);
        let bad = fake::program(folder.path(), "silent-death");
        for (worker, bound) in [("/nonexistent/worker".into(), 1), (bad, 0)] {
            let placement = placement_with(bound, worker.clone());
            let warnings = Warnings::default();
            tracing::subscriber::with_default(warnings.clone(), || {
                let machines: Vec<_> = (0..3).map(|_| placement.launch(&spec).unwrap()).collect();
                assert!(machines.iter().all(|machine| place_of(&**machine) == Place::ThisProcess));
                let template = machines[0].capture().unwrap();
                template.prepare().unwrap();
                assert_eq!(place_of(&*template.restore().unwrap()), Place::ThisProcess);
            });
            assert_eq!(warnings.0.load(Ordering::SeqCst), 1, "{}", worker.display());
            let checked = placement.check().unwrap();
            assert_eq!((checked.place, checked.machines_in_process), (Place::ThisProcess, None));
        }
        // Those beyond the bound were counted, and given back.
        let placement = placement(1);
        let one = placement.launch(&spec).unwrap();
        let two = placement.launch(&spec).unwrap();
        assert_eq!((place_of(&*one), place_of(&*two)), (Place::ThisProcess, Place::Worker));
    });
}

#[test]
fn none_in_this_process_is_a_bound_too() {
    alone("placement::none_in_this_process_is_a_bound_too", || {
        let Some(host) = Host::new() else { return };
        let placement = placement(0);
        let checked = placement.check().unwrap();
        assert_eq!((checked.place, checked.machines_in_process), (Place::Worker, None));
        assert_eq!(place_of(&*placement.launch(&beats(&host)).unwrap()), Place::Worker);
    });
}

#[test]
fn many_lives_in_both_places_leave_nothing_behind() {
    alone("placement::many_lives_in_both_places_leave_nothing_behind", || {
        let Some(host) = Host::new() else { return };
        let placement = placement(2);
        let spec = beats(&host);
        let lives = || {
            let machines: Vec<_> = (0..4).map(|_| placement.launch(&spec).unwrap()).collect();
            let places: Vec<_> = machines.iter().map(|machine| machine.place()).collect();
            assert_eq!(
                places,
                [Place::ThisProcess, Place::ThisProcess, Place::Worker, Place::Worker],
                "seats came back"
            );
            drop(machines);
            hayfork_vmm::monitor::settle();
            wait_for(PATIENCE, "quiet", || {
                !crate::host::thread_names().iter().any(|name| name.starts_with("hayfork-worker"))
            });
        };
        lives();
        let before = Holdings::now();
        (0..5).for_each(|_| lives());
        Holdings::now().check_against(&before);
    });
}
