//! What snapshot files cost: writing one, opening it, and loading it, which is done once by each process. What a restore costs is
//! measured by the bench `monitor`.
//!
//! The memory is that of a guest of 256 MiB of which 40 MiB are in use, in pieces of the size that they have there.

#![allow(missing_docs, clippy::unwrap_used)] // Made by macros; a benchmark.

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() {
    measure::all();
}

#[cfg(target_os = "linux")]
mod measure {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use criterion::{Criterion, Throughput};
    use hayfork_vmm::snapshot::{Contents, Identity, Memory, SnapshotFile, StateKind, write};

    const RAM: u64 = 256 << 20;
    /// Bytes of a run of pages, and from one to the next.
    const RUN: u64 = 64 << 10;
    const STRIDE: u64 = 400 << 10;

    pub(crate) fn all() {
        let mut criterion = Criterion::default().sample_size(20).configure_from_args();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let memory = memory();
        let state = vec![7; 20_000];
        save(&path, &memory, &state);
        let content = SnapshotFile::open(&path).unwrap().memory_bytes();
        let mut group = criterion.benchmark_group("snapshot file");
        group.bench_function("open: header, identity, about", |bencher| {
            bencher.iter(|| SnapshotFile::open(&path).unwrap());
        });
        group.throughput(Throughput::Bytes(content));
        group.bench_function("load: state and memory into a memfd, with digests", |bencher| {
            bencher.iter_with_large_drop(|| load(&path));
        });
        group.bench_function("save: with fsync", |bencher| bencher.iter(|| save(&path, &memory, &state)));
        group.finish();
        criterion.final_summary();
    }

    fn identity() -> Identity {
        Identity::new("bench")
    }

    fn memory() -> File {
        let memory = File::from(rustix::fs::memfd_create("bench", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(RAM).unwrap();
        let run: Vec<u8> = (0..RUN).map(|at| u8::try_from(at % 251).unwrap()).collect();
        for at in (0..RAM / STRIDE).map(|number| number * STRIDE) {
            memory.write_all_at(&run, at).unwrap();
        }
        memory
    }

    fn save(path: &Path, memory: &File, state: &[u8]) {
        let pieces = (0..RAM / STRIDE).map(|number| (number * STRIDE..number * STRIDE + RUN, memory.as_fd()));
        let contents = Contents {
            identity: &identity(),
            about: b"about",
            kind: StateKind::Monitor,
            state,
            memory: Memory { length: RAM, pieces: pieces.collect() },
            working_set: &[],
        };
        write(path, &contents).unwrap();
    }

    fn load(path: &Path) -> impl Sized {
        let file = SnapshotFile::open(path).unwrap().admit(&identity(), StateKind::Monitor).unwrap();
        file.state().unwrap();
        file.memory("bench").unwrap().memory
    }
}
