//! The memory that is available. A table writes all of its memory when it is built, and writing
//! memory that the system promised but does not have kills the process instead of returning an
//! error.

use std::path::{Path, PathBuf};
use std::string::String;
use std::vec::Vec;

/// The size in bytes below which available memory is not checked.
const SMALL: usize = 64 << 20;

/// Returns true if `bytes` are available, or if the system does not report its available memory.
pub(crate) fn fits(bytes: usize) -> bool {
    bytes < SMALL || available().is_none_or(|available| bytes as u64 <= available)
}

/// Returns the bound in bytes for states whose memory grows later: half of the available memory.
pub(crate) fn half_of_what_is_left() -> usize {
    let half = available().map_or(u64::MAX, |available| available / 2);
    usize::try_from(half).unwrap_or(usize::MAX).max(SMALL)
}

/// Returns the bytes of memory that this process can use: those of the machine, or the smallest
/// limit of its control groups if that is less. `None` if the system does not report them.
pub fn total() -> Option<u64> {
    least("MemTotal:", |group| {
        read(&group.folder.join(group.most))?.trim().parse().ok()
    })
}

/// Returns the bytes of memory that are left to this process: those of the machine, or of the
/// control group with the least left if that is less.
fn available() -> Option<u64> {
    least("MemAvailable:", |Group { folder, most, used }| {
        let most = read(&folder.join(most))?;
        let used = read(&folder.join(used))?;
        let cached = read(&folder.join("memory.stat")).and_then(|text| reclaimable(&text));
        group_left(&most, &used, cached.unwrap_or(0))
    })
}

/// Returns the least of a line of `/proc/meminfo` and the bytes of the control groups. Systems
/// other than Linux have neither.
fn least(line: &str, of_group: impl FnMut(Group) -> Option<u64>) -> Option<u64> {
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| kilobytes(&text, line));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let left = groups_of(&groups).into_iter().filter_map(of_group);
    left.chain(machine).min()
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// A control group, with the names of its files for the memory limit and the memory in use.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    folder: PathBuf,
    most: &'static str,
    used: &'static str,
}

/// Returns the control groups (of either version) that limit this process's memory: its own and
/// their ancestors, from the text of `/proc/self/cgroup`. Inside a container, some of their folders
/// may not be visible.
fn groups_of(text: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, most, used) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            _ if controllers.split(',').any(|name| name == "memory") => (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            ),
            _ => continue,
        };
        let folders = Path::new(path.trim_start_matches('/')).ancestors();
        groups.extend(folders.map(|folder| Group {
            folder: Path::new(root).join(folder),
            most,
            used,
        }));
    }
    groups
}

/// Returns the value of a line of `/proc/meminfo`, in bytes.
fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Returns the bytes left in a group; `None` if it has no limit ("max"). Cached files do not count
/// as used, since the kernel drops them on demand.
fn group_left(most: &str, used: &str, cached: u64) -> Option<u64> {
    let most = most.trim().parse::<u64>().ok()?;
    let used = used.trim().parse::<u64>().ok()?;
    Some(most.saturating_sub(used.saturating_sub(cached)))
}

/// Returns `inactive_file` of `memory.stat`, in bytes.
fn reclaimable(stat: &str) -> Option<u64> {
    let of = |name| stat.lines().find_map(|line| line.strip_prefix(name));
    of("total_inactive_file ")
        .or_else(|| of("inactive_file "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_tells_is_read() {
        let meminfo = "MemTotal:  24000 kB\nMemFree: 10 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(kilobytes(meminfo, "MemAvailable:"), Some(2 << 20));
        assert_eq!(kilobytes(meminfo, "MemTotal:"), Some(24_000 << 10));
        assert_eq!(kilobytes("nonsense", "MemTotal:"), None);
        assert_eq!(group_left("4096\n", "1000\n", 0), Some(3096));
        assert_eq!(group_left("4096\n", "1000\n", 900), Some(3996));
        assert_eq!(group_left("10\n", "11\n", 0), Some(0));
        assert_eq!(group_left("max\n", "11\n", 0), None);
        assert_eq!(reclaimable("anon 5\ninactive_file 900\n"), Some(900));
        assert_eq!(
            reclaimable("inactive_file 900\ntotal_inactive_file 950\n"),
            Some(950)
        );
        assert!(fits(1));
    }

    #[test]
    fn the_groups_of_this_process_and_those_around_it_count() {
        let group = |folder: &str, most, used| Group {
            folder: folder.into(),
            most,
            used,
        };
        let second = |folder| group(folder, "memory.max", "memory.current");
        assert_eq!(
            groups_of("0::/system.slice/earrrl.service\n"),
            [
                second("/sys/fs/cgroup/system.slice/earrrl.service"),
                second("/sys/fs/cgroup/system.slice"),
                second("/sys/fs/cgroup/"),
            ]
        );
        let first = |folder| group(folder, "memory.limit_in_bytes", "memory.usage_in_bytes");
        assert_eq!(
            groups_of("5:devices:/x\n4:cpu,memory:/docker/1f\nnonsense\n"),
            [
                first("/sys/fs/cgroup/memory/docker/1f"),
                first("/sys/fs/cgroup/memory/docker"),
                first("/sys/fs/cgroup/memory/"),
            ]
        );
    }
}
