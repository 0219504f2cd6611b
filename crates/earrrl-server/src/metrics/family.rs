//! Metric families in the Prometheus text format.

use std::fmt::Write as _;

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
