//! Reading vectors, and accounting for every row of them.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::Value;

/// A file of vectors. When dropped, it says how many of its rows were tested, and why not all.
pub(crate) struct Vectors {
    name: &'static str,
    json: Value,
    reached: usize,
    passed_over: BTreeMap<&'static str, usize>,
}

impl Vectors {
    /// Fails if there is no file of this name.
    pub(crate) fn exists(name: &str) {
        assert!(std::path::Path::new(&Self::path(name)).exists(), "{name}");
    }

    fn path(name: &str) -> String {
        format!(
            "{}/../../testdata/vectors/{name}.json",
            env!("CARGO_MANIFEST_DIR")
        )
    }

    pub(crate) fn read(name: &'static str) -> Self {
        let path = Self::path(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let json = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self {
            name,
            json,
            reached: 0,
            passed_over: BTreeMap::new(),
        }
    }

    pub(crate) fn get(&self, field: &str) -> Value {
        let value = self
            .json
            .get(field)
            .unwrap_or_else(|| panic!("{}: no {field}", self.name));
        value.clone()
    }

    pub(crate) fn rows(&self, field: &str) -> Vec<Value> {
        list(&self.get(field))
    }

    pub(crate) fn reached(&mut self, rows: usize) {
        self.reached += rows;
    }

    pub(crate) fn passed_over(&mut self, rows: usize, why: &'static str) {
        *self.passed_over.entry(why).or_default() += rows;
    }
}

impl Drop for Vectors {
    /// Written past the test harness, which would keep it back.
    fn drop(&mut self) {
        let not: usize = self.passed_over.values().sum();
        let why: Vec<_> = self
            .passed_over
            .iter()
            .map(|(why, n)| format!("{n} {why}"))
            .collect();
        let name = self.name;
        let reached = self.reached;
        let line = format!(
            "vectors/{name}: {reached} rows tested, {not} not: {}",
            why.join(", ")
        );
        let _ = writeln!(std::io::stderr(), "{}", line.trim_end_matches(": "));
    }
}

#[track_caller]
pub(crate) fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[track_caller]
pub(crate) fn whole(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no whole number"))
}

#[track_caller]
pub(crate) fn flag(value: &Value) -> bool {
    value
        .as_bool()
        .unwrap_or_else(|| panic!("{value} is no flag"))
}

#[track_caller]
pub(crate) fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
}

#[track_caller]
pub(crate) fn list(value: &Value) -> Vec<Value> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("{value} is no list"))
        .clone()
}

/// The members of an object whose names are whole numbers, in their order.
#[track_caller]
pub(crate) fn by_number(value: &Value) -> Vec<(u64, Value)> {
    let object = value
        .as_object()
        .unwrap_or_else(|| panic!("{value} is no object"));
    let numbered = object
        .iter()
        .filter_map(|(key, value)| Some((key.parse().ok()?, value.clone())));
    let mut members: Vec<(u64, Value)> = numbered.collect();
    members.sort_by_key(|(key, _)| *key);
    members
}
