//! What a machine costs the host, from what Linux says of QEMU's memory (`proc(5)`, `smaps`).

use hayfork_vmm::backend::HostMemory;

use crate::ram;

/// The memory of the QEMU with this process id, whose guest's RAM is shared with this process or private to it.
pub(crate) fn of(pid: u32, is_shared: bool) -> Option<HostMemory> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    let whole = parse_rollup(&read("smaps_rollup")?)?;
    if is_shared { Some(whole) } else { split(whole, &read("smaps")?) }
}

/// Takes `/proc/PID/smaps_rollup` apart. Guest memory is the only shared memory object that QEMU maps, and nobody else
/// maps it, so that its pages count as private there, under `Pss_Shmem` too.
fn parse_rollup(rollup: &str) -> Option<HostMemory> {
    let bytes = |field: &str| -> Option<u64> {
        let line = rollup.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    let clean = bytes("Private_Clean")? + bytes("Shared_Clean")?;
    let dirty = bytes("Private_Dirty")? + bytes("Shared_Dirty")?;
    let guest = bytes("Pss_Shmem")?;
    // Pages of guest memory that were only read count as clean; they are few.
    Some(HostMemory { overhead: dirty.saturating_sub(guest), guest, cached: clean })
}

/// Tells the RAM of a restored guest apart in the text of `/proc/PID/smaps`: pages of its own, and unchanged ones of what it was made
/// of, which are in memory once for all that are made of that. `Rss` counts both, `Anonymous` the former.
fn split(whole: HostMemory, smaps: &str) -> Option<HostMemory> {
    let (mut resident, mut own, mut clean, mut dirty) = (0, 0, 0, 0);
    let mut is_ram = false;
    for line in smaps.lines() {
        let Some((field, value)) = line.split_once(':').filter(|(field, _)| !field.contains(' ')) else {
            is_ram = line.contains(ram::IMAGE_NAME);
            continue;
        };
        let counter = match field {
            "Rss" if is_ram => &mut resident,
            "Anonymous" if is_ram => &mut own,
            "Private_Clean" | "Shared_Clean" if is_ram => &mut clean,
            "Private_Dirty" | "Shared_Dirty" if is_ram => &mut dirty,
            _ => continue,
        };
        *counter += value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10;
    }
    Some(HostMemory {
        overhead: (whole.overhead + whole.guest).saturating_sub(dirty),
        guest: own,
        cached: whole.cached.saturating_sub(clean) + resident.saturating_sub(own),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLLUP: &str = "\
55d0c0000000-7ffd3b5f6000 ---p 00000000 00:00 0                          [rollup]
Rss:              142000 kB
Pss:              110000 kB
Pss_Dirty:         95000 kB
Pss_Anon:          25000 kB
Pss_File:          15000 kB
Pss_Shmem:         70000 kB
Shared_Clean:      30000 kB
Shared_Dirty:          0 kB
Private_Clean:     12000 kB
Private_Dirty:    100000 kB
";

    #[test]
    fn guest_memory_is_taken_out_of_what_qemu_has() {
        let memory = parse_rollup(ROLLUP).unwrap();
        assert_eq!(memory, HostMemory { overhead: 30_000 << 10, guest: 70_000 << 10, cached: 42_000 << 10 });
        assert_eq!(parse_rollup(""), None);
        assert_eq!(parse_rollup(&ROLLUP.replace("Pss_Shmem", "Pss_Other")), None);
    }

    #[test]
    fn pages_of_a_restored_guest_s_own_are_told_from_those_it_was_made_of() {
        let smaps = "\
55d0c0000000-55d0c0001000 r--p 00000000 08:01 77                         /usr/bin/qemu-system-x86_64
Rss:                4000 kB
Private_Clean:      4000 kB
Anonymous:             0 kB
7f81ebfff000-7f81f3fff000 rw-p 00000000 00:01 10730                      /memfd:hayfork-template (deleted)
Size:             131072 kB
Rss:               50000 kB
Pss:               30000 kB
Shared_Clean:          0 kB
Shared_Dirty:      40000 kB
Private_Clean:         0 kB
Private_Dirty:     10000 kB
Anonymous:          8000 kB
VmFlags: rd wr mr mw me dd sd
7f81f4000000-7f81f4001000 rw-p 00000000 00:00 0 
Rss:               15000 kB
Anonymous:         15000 kB
";
        let whole = parse_rollup(ROLLUP).unwrap();
        let memory = split(whole, smaps).unwrap();
        assert_eq!(memory, HostMemory { overhead: 50_000 << 10, guest: 8_000 << 10, cached: 84_000 << 10 });
    }
}
