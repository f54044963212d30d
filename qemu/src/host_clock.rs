//! Measures the host's time stamp counter, which is the translated guest's too.
//!
//! Under TCG the guest reads the host's counter (QEMU's `cpu_get_host_ticks`), but is not told its frequency, and its
//! kernel's attempt to measure it against the timer chip fails as often as not, because translated code is too slow for
//! that. The guest then keeps time by counting timer interrupts, 4 ms at a time, and loses some. So the host measures
//! and says it on the kernel's command line.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

/// How long the counter is watched at least. Two readings are off by some 100 ns together, so 20 ms give 10 ppm.
const WATCH: Duration = Duration::from_millis(20);
/// By how much the two halves of the time watched may differ: 1 in 2,000. A counter that changes its frequency or
/// stops with the processor is off by far more.
const TOLERANCE: f64 = 0.0005;

/// The counter and the time, read together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    time: Instant,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    ticks: u64,
}

impl Reading {
    /// Reads both, several times, and takes the reading that was disturbed least.
    pub(crate) fn now() -> Self {
        let mut best: Option<(Duration, Self)> = None;
        for _ in 0..5 {
            let before = Instant::now();
            let ticks = ticks();
            let took = before.elapsed();
            if best.is_none_or(|(least, _)| took < least) {
                // The counter was read about in the middle.
                best = Some((took, Self { time: before + took / 2, ticks }));
            }
        }
        // The loop runs, so there is one.
        best.map_or_else(|| Self { time: Instant::now(), ticks: ticks() }, |(_, reading)| reading)
    }

    /// Ticks a second between two readings.
    fn rate(self, later: Self) -> f64 {
        // Differences of seconds, well below 2^53 ticks.
        #[allow(clippy::cast_precision_loss)]
        let ticks = later.ticks.wrapping_sub(self.ticks) as f64;
        ticks / later.time.duration_since(self.time).as_secs_f64()
    }
}

/// The frequency of the counter in kHz, measured since `start`, which was read by the caller before it did other work;
/// waits for 10 to 20 ms. `None` if there is no counter or it is not steady.
pub(crate) fn khz_since(start: Reading) -> Option<u32> {
    if cfg!(not(target_arch = "x86_64")) {
        return None;
    }
    std::thread::sleep((WATCH / 2).saturating_sub(start.time.elapsed()));
    let middle = Reading::now();
    std::thread::sleep(WATCH / 2);
    let end = Reading::now();
    steady_khz(start.rate(middle), middle.rate(end), start.rate(end))
}

/// The frequency in kHz, if both halves agree with the whole.
fn steady_khz(first: f64, second: f64, whole: f64) -> Option<u32> {
    let agrees = |half: f64| (half / whole - 1.0).abs() < TOLERANCE;
    let khz = whole / 1000.0;
    // A counter below 1 MHz or beyond 4 GHz times 1000 is none.
    let plausible = (1e3..f64::from(u32::MAX)).contains(&khz);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (plausible && agrees(first) && agrees(second)).then_some(khz.round() as u32)
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: RDTSC touches no memory. It would fault where a program has forbidden it to itself (PR_SET_TSC), which is
    // a debugging aid that no program with a clock in it survives.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsteady_counter_is_not_used() {
        assert_eq!(steady_khz(2.5e9, 2.5e9, 2.5e9), Some(2_500_000));
        assert_eq!(steady_khz(2.500_1e9, 2.5e9, 2.500_05e9), Some(2_500_050));
        assert_eq!(steady_khz(2.6e9, 2.4e9, 2.5e9), None);
        assert_eq!(steady_khz(0.0, 0.0, 0.0), None);
        assert_eq!(steady_khz(f64::NAN, 1.0, f64::INFINITY), None);
    }

    /// Two measures of the same counter agree, as they would not if they measured the host's load.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn measuring_twice_gives_the_same() {
        let measure = || khz_since(Reading::now());
        let (Some(first), Some(second)) = (measure(), measure()) else {
            panic!("this test needs a host with a steady time stamp counter");
        };
        assert!(first.abs_diff(second) < first / 5000, "{first} kHz and then {second} kHz");
    }
}
