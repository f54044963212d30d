//! What there is for machines: the host's memory, or what a control group leaves of it to this process, and descriptors.
//!
//! A container's `/proc/meminfo` is the host's. Its limit stands in its control group, or in one above it (Linux,
//! Documentation/admin-guide/cgroup-v2.rst, "Memory"; cgroup-v1/memory.rst); whoever takes more is killed. What a group holds of
//! files that were not used lately is given back before that happens, so it counts as room.

use std::fs;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    /// Bytes of memory that can be had now.
    pub(crate) available: u64,
    /// Bytes of memory in all.
    pub(crate) total: u64,
    /// Descriptors that this process can still open.
    pub(crate) descriptors: u64,
}

/// Names of one version's files, and where its groups are mounted.
struct Version {
    mounts: &'static [&'static str],
    limit: &'static str,
    used: &'static str,
    idle_files: &'static str,
}

const SECOND: Version = Version {
    mounts: &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
    limit: "memory.max",
    used: "memory.current",
    idle_files: "inactive_file ",
};

const FIRST: Version = Version {
    mounts: &["/sys/fs/cgroup/memory"],
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    idle_files: "total_inactive_file ",
};

impl Host {
    /// This host, as far as it says: one that does not has enough, and what is refused then is refused by the kernel.
    pub(crate) fn now() -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            let kib = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().ok()?;
            Some(kib << 10)
        };
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        let open = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
        let mut host = Self {
            available: field("MemAvailable").unwrap_or(u64::MAX),
            total: field("MemTotal").unwrap_or(0),
            descriptors: limit.saturating_sub(open),
        };
        for line in fs::read_to_string("/proc/self/cgroup").unwrap_or_default().lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let version = match controllers {
                "" => &SECOND,
                list if list.split(',').any(|name| name == "memory") => &FIRST,
                _ => continue,
            };
            for mount in version.mounts {
                host.bound_by(version, Path::new(mount), group);
            }
        }
        host
    }

    /// Takes the limits of a group and of those above it into account.
    fn bound_by(&mut self, version: &Version, mount: &Path, group: &str) {
        // Within a container the path may be the host's, which is not there: then the mount itself is the group.
        for above in Path::new(group.trim_start_matches('/')).ancestors() {
            let folder = mount.join(above);
            let read = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
            // No limit is `max`, or a number beyond all memory.
            let Ok(limit) = read(version.limit).trim().parse::<u64>() else { continue };
            let used = read(version.used).trim().parse().unwrap_or(0);
            let stat = read("memory.stat");
            let idle = stat.lines().find_map(|line| line.strip_prefix(version.idle_files));
            let idle = idle.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
            self.total = self.total.min(limit);
            self.available = self.available.min(limit.saturating_sub(u64::saturating_sub(used, idle)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn this_host_says_what_it_has() {
        let host = Host::now();
        assert!(host.available > 0 && host.available <= host.total, "{host:?}");
        assert!(host.descriptors > 0, "{host:?}");
    }

    #[test]
    fn the_tightest_of_a_group_and_those_above_it_counts() {
        let mount = tempfile::tempdir().unwrap();
        let group = |path: &str, limit: &str, used: u64, idle: u64| {
            let folder = mount.path().join(path);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("memory.max"), format!("{limit}\n")).unwrap();
            fs::write(folder.join("memory.current"), format!("{used}\n")).unwrap();
            fs::write(folder.join("memory.stat"), format!("anon 1\ninactive_file {idle}\nfile 3\n")).unwrap();
        };
        group("a", &(1000 * MIB).to_string(), 900 * MIB, 200 * MIB);
        group("a/b", "max", 5 * MIB, 0);
        let all = Host { available: 4000 * MIB, total: 8000 * MIB, descriptors: 1 };
        let bound = |path| {
            let mut host = all;
            host.bound_by(&SECOND, mount.path(), path);
            (host.available / MIB, host.total / MIB)
        };
        assert_eq!(bound("/a/b"), (300, 1000), "files that nobody uses are given back");
        assert_eq!(bound("/"), (4000, 8000));
        assert_eq!(bound("/not/here"), (4000, 8000));
        group("a/b", &(100 * MIB).to_string(), 150 * MIB, 0);
        assert_eq!(bound("/a/b"), (0, 100));
    }
}
