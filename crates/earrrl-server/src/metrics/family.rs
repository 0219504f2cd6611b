//! Metric families in the Prometheus text format; and those of this process, by the names that Prometheus recommends,
//! read from `/proc`.

use std::fmt::Write as _;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::counter::Histogram;

/// The names and values of the labels of one metric value.
pub type Labels = Vec<(&'static str, String)>;

/// A metric family: a metric's name, its help text and its values.
#[derive(Debug)]
pub struct Family {
    pub(super) name: String,
    /// The lines with the help text and the type.
    head: String,
    /// A line for each value.
    values: String,
}

impl Family {
    /// Creates a gauge without values.
    pub fn gauge(name: &str, help: &str) -> Self {
        Self::new(name, help, "gauge")
    }

    /// Creates a counter without values.
    pub fn counter(name: &str, help: &str) -> Self {
        Self::new(name, help, "counter")
    }

    fn new(name: &str, help: &str, kind: &str) -> Self {
        Self {
            name: name.to_owned(),
            head: format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"),
            values: String::new(),
        }
    }

    /// Sets a single value that has no labels.
    pub fn value(self, value: f64) -> Self {
        self.with_labels([(Labels::new(), value)])
    }

    /// Sets several values, each with its labels.
    pub fn with_labels(mut self, values: impl IntoIterator<Item = (Labels, f64)>) -> Self {
        for (labels, value) in values {
            self.write("", borrowed(&labels), value);
        }
        self
    }

    /// Sets several values that differ in the value of one label.
    pub fn labelled<L: AsRef<str>>(
        mut self,
        label: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> Self {
        for (name, value) in values {
            self.write("", [(label, name.as_ref())], value);
        }
        self
    }

    /// Creates a histogram metric with the buckets and the sum of `taken`.
    pub fn histogram(name: &str, help: &str, labels: &Labels, taken: &Histogram) -> Self {
        let mut family = Self::new(name, help, "histogram");
        let mut total = 0;
        for (bound, count) in taken.cumulative() {
            let bound = match bound.is_finite() {
                true => bound.to_string(),
                false => "+Inf".to_owned(),
            };
            let labels = borrowed(labels).chain([("le", &*bound)]);
            family.write("_bucket", labels, count as f64);
            total = count;
        }
        family.write("_sum", borrowed(labels), taken.seconds());
        family.write("_count", borrowed(labels), total as f64);
        family
    }

    /// Writes a line with a value.
    fn write<'a>(
        &mut self,
        suffix: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        value: f64,
    ) {
        let label = |(name, value): (&str, &str)| {
            let value = value.replace('\\', r"\\").replace('\n', r"\n");
            format!("{name}=\"{}\"", value.replace('"', "\\\""))
        };
        let labels: Vec<String> = labels.into_iter().map(label).collect();
        let labels = match &*labels {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(",")),
        };
        // Writing to a string does not fail.
        let _ = writeln!(self.values, "{}{suffix}{labels} {value}", self.name);
    }

    /// Returns the family in the text format; nothing if it has no values.
    pub(super) fn text(self) -> String {
        match self.values.is_empty() {
            true => String::new(),
            false => self.head + &self.values,
        }
    }
}

fn borrowed(labels: &Labels) -> impl Iterator<Item = (&str, &str)> {
    labels.iter().map(|(name, value)| (*name, &**value))
}

/// Returns the metrics of this process; metrics that the operating system does not offer are left
/// out.
pub(super) fn of_process() -> Vec<Family> {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let stat = |number| field(&stat, number);
    let seconds = |number| Some(stat(number)? / clock_ticks_per_second() as f64);
    let cpu = seconds(14)
        .zip(seconds(15))
        .map(|(own, kernel)| own + kernel);
    let start = boot_time()
        .zip(seconds(22))
        .map(|(boot, since)| boot + since);
    let descriptors = fs::read_dir("/proc/self/fd").ok();
    let most = getrlimit(Resource::Nofile).current;
    let gauges = [
        (
            "process_open_fds",
            "Number of open file descriptors.",
            descriptors.map(|entries| entries.count() as f64),
        ),
        (
            "process_max_fds",
            "Maximum number of open file descriptors.",
            most.map(|most| most as f64),
        ),
        (
            "process_virtual_memory_bytes",
            "Virtual memory size in bytes.",
            stat(23),
        ),
        (
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            stat(24).map(|pages| pages * page_size() as f64),
        ),
        (
            "process_threads",
            "Number of OS threads in the process.",
            stat(20),
        ),
        (
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            start,
        ),
    ];
    let known = |(name, help, value)| Some(Family::gauge(name, help).value(value?));
    let help = "Total user and system CPU time spent in seconds.";
    let cpu = cpu.map(|cpu| Family::counter("process_cpu_seconds_total", help).value(cpu));
    gauges.into_iter().filter_map(known).chain(cpu).collect()
}

/// Returns a field of `/proc/self/stat`, by the number that the manual page proc_pid_stat(5) gives it.
fn field(stat: &str, number: usize) -> Option<f64> {
    // The second field, the program's name, is in parentheses, and may contain spaces and parentheses itself.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields
        .split_ascii_whitespace()
        .nth(number - 3)?
        .parse()
        .ok()
}

/// Returns the time at which the machine was started, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.as_secs_f64() - uptime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped_and_empty_families_left_out() {
        let family = || Family::counter("a_total", "Help.");
        assert_eq!(family().text(), "");
        let labels = vec![("x", "\\\"\n".to_owned()), ("y", "é".to_owned())];
        assert_eq!(
            family().with_labels([(labels, 1.5)]).value(2.0).text(),
            "# HELP a_total Help.\n# TYPE a_total counter\n\
             a_total{x=\"\\\\\\\"\\n\",y=\"é\"} 1.5\na_total 2\n"
        );
    }
}

#[cfg(test)]
mod process_tests {
    use super::*;

    #[test]
    fn a_program_may_have_any_name() {
        let text = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20 0 3 0 400 5000 60 70";
        let fields = [14, 15, 20, 22, 23, 24].map(|number| field(text, number));
        assert_eq!(fields, [30.0, 12.0, 3.0, 400.0, 5000.0, 60.0].map(Some));
        for wrong in ["", "7 (a)", "7 (a) S 1 2 3"] {
            assert_eq!(field(wrong, 14), None, "{wrong}");
        }
    }

    #[test]
    fn this_process_has_all_of_them() {
        let names: Vec<_> = of_process().into_iter().map(|family| family.name).collect();
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
