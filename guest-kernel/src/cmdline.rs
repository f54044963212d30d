//! The kernel command line that this configuration is made for.
//!
//! | word | why |
//! |---|---|
//! | `console=ttyS0` | the host keeps the serial console as diagnosis |
//! | `quiet loglevel=4` | each character costs an exit; errors and panics still come through |
//! | `panic=-1` | a panic resets the machine at once, which ends the VM (QEMU: `-no-reboot`); built in too |
//! | `reboot=t` | reset by triple fault: there is neither a keyboard controller nor ACPI to ask, and looking for them takes a second |
//! | `noreplace-smp` | keeps `lock` prefixes on one CPU: patching them away costs 50 ms under TCG and saves nothing |
//! | `tsc_early_khz=N` | TCG only: the TSC runs at the host's frequency and microvm has no port 0x61 to measure it by |
//! | `tsc=reliable` | TCG only: without it Linux gives the TSC up with two or more AMD-like CPUs |
//! | `lapic_timer_khz=1000000` | TCG only, from our patch: QEMU's local APIC timer counts nanoseconds |
//! | `clocksource=kvm-clock` | kvm_pvm only: the TSC cannot be offset there, so by it monotonic time would jump over a snapshot |
//! | `no_timer_check` | kvm_pvm only: the check counts ticks in a busy loop and takes their lateness for a broken timer |
//! | `nokaslr` | kvm_pvm only: says what is so, the kernel has a fixed address |
//!
//! Without `tsc_early_khz` a TCG guest falls back to a 4 ms jiffies clock without high-resolution timers or tickless idle, and
//! takes about 0.4 s longer to boot. With the three TCG words nothing is calibrated: the machine needs neither PIT nor PIC
//! (`pit=off,pic=off`).
//!
//! Not a word for the kernel, but of the same kind: under TCG `-cpu max,erms=off` makes clearing and copying memory in the
//! guest 2 to 10 times faster, since `rep stosb` and `rep movsb` are emulated byte by byte.
//!
//! A guest ends itself by `reboot(RB_AUTOBOOT)`. `RB_POWER_OFF` only halts it, as there is no ACPI.

/// What every host puts on the command line, whatever the backend. The agent's own words (`hayfork.…=`) come after it.
pub const RECOMMENDED_COMMAND_LINE: &str = "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t noreplace-smp";

/// Input clock of QEMU's local APIC timer, in kHz: it counts nanoseconds of virtual time.
pub const QEMU_LAPIC_TIMER_KHZ: u32 = 1_000_000;

/// What a host adds to [`RECOMMENDED_COMMAND_LINE`] when QEMU emulates the CPU (TCG), and only then.
///
/// `host_tsc_khz` is the frequency of the host's own time stamp counter in kHz, which is the guest's too: two samples of
/// (`rdtsc`, `CLOCK_MONOTONIC`) at least 10 ms apart give it within some 10 ppm. The guest's clock is as right as this number.
pub fn tcg_command_line(host_tsc_khz: u32) -> String {
    format!("tsc_early_khz={host_tsc_khz} tsc=reliable lapic_timer_khz={QEMU_LAPIC_TIMER_KHZ}")
}

/// What a host adds to [`RECOMMENDED_COMMAND_LINE`] for a kernel of [`Flavour::Pvm`](crate::Flavour::Pvm).
pub const PVM_COMMAND_LINE: &str = "clocksource=kvm-clock no_timer_check nokaslr";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcg_words_are_complete() {
        let line = tcg_command_line(2_445_406);
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words, ["tsc_early_khz=2445406", "tsc=reliable", "lapic_timer_khz=1000000"]);
    }

    #[test]
    fn no_word_is_given_twice() {
        for more in [tcg_command_line(1).as_str(), PVM_COMMAND_LINE] {
            let line = format!("{RECOMMENDED_COMMAND_LINE} {more}");
            let mut words: Vec<&str> = line.split(' ').collect();
            let all = words.len();
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), all);
            assert!(words.iter().all(|word| !word.is_empty()));
        }
    }
}
