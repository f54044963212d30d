use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const MIB: u64 = 1 << 20;

fn roomy() -> Host {
    Host { available: 1 << 40, total: 1 << 40, descriptors: 10_000 }
}

#[tokio::test]
async fn whoever_comes_first_is_let_in_first_however_large() {
    static AVAILABLE: AtomicU64 = AtomicU64::new(0);
    let host = || Host { available: AVAILABLE.load(Ordering::SeqCst), total: 0, descriptors: 10_000 };
    // Room for 400 MiB of memory, of which a quarter is expected to be used.
    AVAILABLE.store(100 * MIB, Ordering::SeqCst);
    let admission = Arc::new(Admission::with_host(host, 1000));
    let first = admission.enter(200).await;
    let second = admission.enter(200).await;

    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for memory in [300, 100, 100] {
        let (admission, order) = (Arc::clone(&admission), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let permit = admission.enter(memory).await;
            lock(&order).push(memory);
            permit
        }));
        // So that they stand in line in this order.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(first);
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(lock(&order).is_empty(), "200 are in use and 300 come first");
    drop(second);
    let permits = [tasks.remove(0).await.unwrap(), tasks.remove(0).await.unwrap()];
    assert_eq!(*lock(&order), [300, 100]);
    drop(permits);
    tasks.remove(0).await.unwrap();
}

#[tokio::test]
async fn a_place_in_the_line_that_is_given_up_is_gone_and_a_permit_given_back_wakes_the_next() {
    let host = || Host { available: 50 * MIB, total: 0, descriptors: 10_000 };
    let admission = Arc::new(Admission::with_host(host, 1000));
    let held = admission.enter(200).await;
    let waiter = |memory| {
        let admission = Arc::clone(&admission);
        tokio::spawn(async move { admission.enter(memory).await })
    };
    let cancelled = waiter(200);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let next = waiter(200);
    tokio::time::sleep(Duration::from_millis(20)).await;
    cancelled.abort();
    drop(held);
    let permit = tokio::time::timeout(Duration::from_secs(5), next).await.expect("it is woken").unwrap();
    drop(permit);
    // Many who come and go: none is left waiting.
    let all: Vec<_> = (0..200).map(|_| waiter(200)).collect();
    for one in all {
        drop(tokio::time::timeout(Duration::from_secs(5), one).await.expect("none is forgotten").unwrap());
    }
    assert!(lock(&admission.shared.live).machines.is_empty());
}

#[tokio::test]
async fn the_first_machine_is_let_in_whatever_there_is_and_descriptors_count() {
    let host = || Host { available: 0, total: 1 << 40, descriptors: 0 };
    let admission = Admission::with_host(host, 1000);
    let _first = admission.enter(100_000).await;
    let more = tokio::time::timeout(Duration::from_millis(300), admission.enter(100)).await;
    assert!(more.is_err(), "it waits");

    let admission =
        Admission::with_host(|| Host { descriptors: 2 * DESCRIPTORS.0 + DESCRIPTORS.1 - 1, ..roomy() }, 1000);
    let _first = admission.enter(100).await;
    let more = tokio::time::timeout(Duration::from_millis(300), admission.enter(100)).await;
    assert!(more.is_err(), "it waits for descriptors");
}

#[tokio::test]
async fn the_stock_does_not_stand_in_line_and_numbers_are_bounded() {
    let admission = Arc::new(Admission::with_host(roomy, 2));
    let first = admission.try_enter(100).await.unwrap();
    let _second = admission.enter(100).await;
    assert_eq!(admission.try_enter(100).await.unwrap_err().code(), "capacity", "two are the most");
    let waiting = {
        let admission = Arc::clone(&admission);
        tokio::spawn(async move { admission.enter(100).await })
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(first);
    let third = tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("it is woken").unwrap();
    drop(third);
    admission.try_enter(100).await.unwrap();
}
