//! The processes that use a file, from the kernel's list of locks.

use std::format;
use std::fs::{File, read_to_string};
use std::string::String;
use std::vec::Vec;

use rustix::fs::{fstat, major, minor};

/// The most processes that are listed.
const MOST: usize = 32;

/// Returns the processes that hold a lock of the file, as `pid (command)`. Processes outside of
/// this process's namespace are not listed.
pub(super) fn holders(file: &File) -> Vec<String> {
    let Ok(stat) = fstat(file) else {
        return Vec::new();
    };
    let file = format!(
        "{:02x}:{:02x}:{}",
        major(stat.st_dev),
        minor(stat.st_dev),
        stat.st_ino
    );
    let locks = read_to_string("/proc/locks").unwrap_or_default();
    let mut pids = pids_of(&locks, &file);
    pids.retain(|pid| *pid != std::process::id());
    pids.into_iter()
        .take(MOST)
        .map(|pid| format!("{pid} ({})", command(pid)))
        .collect()
}

/// Returns the processes of the lines of `/proc/locks` that are about a file, such as
/// `1: FLOCK  ADVISORY  READ 4711 fe:00:131 0 EOF`.
fn pids_of(locks: &str, file: &str) -> Vec<u32> {
    let pid_of = |line: &str| {
        let words: Vec<_> = line
            .split_whitespace()
            .filter(|word| *word != "->")
            .collect();
        (*words.get(5)? == file).then(|| words[4].parse().ok())?
    };
    let mut pids: Vec<u32> = locks
        .lines()
        .filter_map(pid_of)
        .filter(|pid| *pid > 0)
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

fn command(pid: u32) -> String {
    let name = read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().chars().flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processes_with_locks_of_a_file_are_found() {
        let locks = "1: FLOCK  ADVISORY  READ  12 fe:00:131 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 9 fe:00:131 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 13 fe:00:132 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  12 fe:00:131 0 EOF\nnonsense\n";
        assert_eq!(pids_of(locks, "fe:00:131"), [9, 12]);
        assert!(pids_of("", "fe:00:131").is_empty());
    }
}
