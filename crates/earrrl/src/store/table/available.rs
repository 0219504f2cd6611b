//! Whether so much memory is there. A table is touched whole when it is built, and what the system
//! promises beyond what it has ends the process instead of returning an error.

/// Less than this is not worth asking for.
const SMALL: usize = 64 << 20;

/// Whether so many bytes fit in what is available; true where nobody tells.
pub(super) fn fits(bytes: usize) -> bool {
    bytes < SMALL || available().is_none_or(|available| bytes as u64 <= available)
}

/// What the machine has in all, or the control group may use where that is less.
#[cfg(target_os = "linux")]
pub fn total() -> Option<u64> {
    let read = |path| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| kilobytes(&text, "MemTotal:"));
    let group = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(group).min()
}

#[cfg(not(target_os = "linux"))]
pub fn total() -> Option<u64> {
    None
}

/// What the machine has left, or the control group where that is less.
#[cfg(target_os = "linux")]
fn available() -> Option<u64> {
    let read = |path| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| kilobytes(&text, "MemAvailable:"));
    let limit = read("/sys/fs/cgroup/memory.max");
    let group = limit.zip(read("/sys/fs/cgroup/memory.current"));
    let cached = read("/sys/fs/cgroup/memory.stat").and_then(|text| reclaimable(&text));
    let group = group.and_then(|(most, used)| group_left(&most, &used, cached.unwrap_or(0)));
    machine.into_iter().chain(group).min()
}

#[cfg(not(target_os = "linux"))]
fn available() -> Option<u64> {
    None
}

/// A line of `/proc/meminfo`, in bytes.
#[cfg(any(target_os = "linux", test))]
fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// None where the group has no limit ("max"). What is cached of files makes room when asked.
#[cfg(any(target_os = "linux", test))]
fn group_left(most: &str, used: &str, cached: u64) -> Option<u64> {
    let (most, used) = (most.trim().parse::<u64>().ok()?, used.trim().parse::<u64>().ok()?);
    Some(most.saturating_sub(used.saturating_sub(cached)))
}

/// `inactive_file` of `memory.stat`, in bytes.
#[cfg(any(target_os = "linux", test))]
fn reclaimable(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("inactive_file "))?;
    line.trim().parse().ok()
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
        assert!(fits(1));
    }
}
