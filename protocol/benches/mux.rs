//! What the protocol costs on its way from one side to the other: bytes on one stream, and whole
//! small executions.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hayfork_protocol::limits::WINDOW;
use hayfork_protocol::message::{Event, Finished, Request, Status};
use hayfork_protocol::{Channel, Incoming, Mux, Role};

/// Hands everything that waits on one side to the other, and takes its data.
fn carry(from: &mut Mux, to: &mut Mux) -> usize {
    let bytes = from.output().to_vec();
    from.advance(bytes.len());
    let mut rest = &bytes[..];
    let mut received = 0;
    while let Ok(Some(incoming)) = to.receive(&mut rest) {
        if let Incoming::Data(stream, channel, data) = incoming {
            to.consumed(stream, channel, data.len());
            received += data.len();
        }
    }
    received
}

fn benches(criterion: &mut Criterion) {
    let window = vec![7; WINDOW as usize];
    let mut group = criterion.benchmark_group("mux");
    group.throughput(Throughput::Bytes(u64::from(WINDOW)));
    group.bench_function("a window of data, guest to host", |bencher| {
        let (mut host, mut guest) = (Mux::new(Role::Host), Mux::new(Role::Guest));
        let Ok(stream) = host.open(&Request::Stats) else { return };
        carry(&mut host, &mut guest);
        bencher.iter(|| {
            guest.data(stream, Channel::Stdout, &window);
            let received = carry(&mut guest, &mut host);
            carry(&mut host, &mut guest);
            assert_eq!(received, window.len());
        });
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("a small execution, both ways", |bencher| {
        let (mut host, mut guest) = (Mux::new(Role::Host), Mux::new(Role::Guest));
        let end =
            Finished { status: Status::Exited, exit_code: 0, state_reset: false, spawn_us: 0, run_us: 1 };
        bencher.iter(|| {
            let Ok(stream) = host.open(&Request::Stats) else { return };
            carry(&mut host, &mut guest);
            guest.data(stream, Channel::Stdout, b"42\n");
            let _ = guest.event(stream, &Event::Finished(end.clone()));
            guest.close(stream);
            assert_eq!(carry(&mut guest, &mut host), 3);
        });
    });
    group.finish();
}

criterion_group!(mux, benches);
criterion_main!(mux);
