//! Metrics of this process by the names that Prometheus recommends, read from `/proc`.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::family::Family;

/// Returns the metrics of this process; metrics that the operating system does not offer are left
/// out.
pub(super) fn families() -> Vec<Family> {
    let stat = fs::read_to_string("/proc/self/stat")
        .ok()
        .and_then(|text| Stat::parse(&text));
    let descriptors = fs::read_dir("/proc/self/fd")
        .ok()
        .map(|entries| entries.count() as f64);
    let most = getrlimit(Resource::Nofile).current.map(|most| most as f64);
    let gauges = [
        (
            "process_open_fds",
            "Number of open file descriptors.",
            descriptors,
        ),
        (
            "process_max_fds",
            "Maximum number of open file descriptors.",
            most,
        ),
    ];
    let gauges = gauges.into_iter().filter_map(|(name, help, value)| {
        value.map(|value| Family::gauge(name, help).value(value))
    });
    gauges.chain(stat.iter().flat_map(Stat::families)).collect()
}

/// The fields of `/proc/self/stat` that are exported as metrics.
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_ticks: f64,
    threads: f64,
    start_ticks: f64,
    virtual_bytes: f64,
    resident_pages: f64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The program's name is in parentheses, and may contain spaces and parentheses itself.
        let (_, fields) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // The manual page proc_pid_stat(5) numbers the fields from 1, and `fields` begins with
        // field 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }

    fn families(&self) -> Vec<Family> {
        let ticks = clock_ticks_per_second() as f64;
        let gauges = [
            (
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
                self.virtual_bytes,
            ),
            (
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                self.resident_pages * page_size() as f64,
            ),
            (
                "process_threads",
                "Number of OS threads in the process.",
                self.threads,
            ),
        ];
        let help = "Start time of the process since unix epoch in seconds.";
        let start = boot_time().map(|boot| boot.as_secs_f64() + self.start_ticks / ticks);
        let start =
            start.map(|start| Family::gauge("process_start_time_seconds", help).value(start));
        let help = "Total user and system CPU time spent in seconds.";
        let cpu = Family::counter("process_cpu_seconds_total", help).value(self.cpu_ticks / ticks);
        let gauges = gauges.map(|(name, help, value)| Family::gauge(name, help).value(value));
        gauges.into_iter().chain(start).chain([cpu]).collect()
    }
}

/// Returns the time at which the machine was started, as a duration since 1970.
fn boot_time() -> Option<Duration> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime = uptime.split(' ').next()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    now.checked_sub(Duration::try_from_secs_f64(uptime).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_have_any_name() {
        let text = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20 0 3 0 400 5000 60 70";
        let expected = Stat {
            cpu_ticks: 42.0,
            threads: 3.0,
            start_ticks: 400.0,
            virtual_bytes: 5000.0,
            resident_pages: 60.0,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        for wrong in ["", "7 (a)", "7 (a) S 1 2 3"] {
            assert_eq!(Stat::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn this_process_has_all_of_them() {
        let names: Vec<_> = families()
            .iter()
            .map(|family| family.0.name().to_owned())
            .collect();
        let expected = [
            "process_open_fds",
            "process_max_fds",
            "process_virtual_memory_bytes",
            "process_resident_memory_bytes",
            "process_threads",
            "process_start_time_seconds",
            "process_cpu_seconds_total",
        ];
        assert_eq!(names, expected);
    }
}
