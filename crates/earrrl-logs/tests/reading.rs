//! Reads logs as the command line does.
#![allow(clippy::unwrap_used, reason = "a helper of tests")]

use std::fs;
use std::path::PathBuf;

use earrrl_logs::format::Hints;
use earrrl_logs::line::{Skip, time};
use earrrl_logs::reading::{Costs, Filter, LogReader, ReadError, Selection};
use earrrl_tower::Prefixes;

/// The outcome of reading a log.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// The client and the time of each request.
    pub(crate) requests: Vec<(String, String)>,
    /// The cost of each request.
    pub(crate) costs: Vec<String>,
    pub(crate) skipped: Vec<Skip>,
    pub(crate) doubts: Vec<String>,
    pub(crate) error: Option<String>,
}

pub(crate) fn read(log: &str) -> Read {
    read_files(&[log], |paths| paths)
}

/// Reads the files, in the order that `order` gives their paths.
pub(crate) fn read_files(logs: &[&str], order: impl Fn(Vec<PathBuf>) -> Vec<PathBuf>) -> Read {
    let folder = tempfile::tempdir().unwrap();
    let write = |(number, log): (usize, &&str)| {
        let path = folder.path().join(format!("{number}.log"));
        fs::write(&path, log).unwrap();
        path
    };
    let paths = logs.iter().enumerate().map(write).collect();
    read_paths(&order(paths))
}

/// Reads files and directories.
pub(crate) fn read_paths(paths: &[PathBuf]) -> Read {
    let mut reader = LogReader::new(Selection {
        format: None,
        hints: Hints {
            year: Some(2024),
            ..Hints::default()
        },
        key: "client".parse().unwrap(),
        prefixes: Prefixes::new(32, 128),
        costs: Costs::default(),
        filter: Filter::default(),
    });
    let mut read = Read::default();
    for path in paths {
        let result = reader.read(path, |source| source, &mut |clients, requests| {
            read.costs
                .extend(requests.iter().map(|request| request.cost.to_string()));
            read.requests.extend(requests.iter().map(|request| {
                let client = String::from_utf8_lossy(clients.key(request.client)).into_owned();
                (client, time::written(request.time))
            }));
            Ok(())
        });
        if let Err(ReadError::Input(error)) = result {
            read.error = Some(error);
        }
    }
    read.skipped = reader.skips.by_reason().map(|(skip, ..)| skip).collect();
    read.doubts = reader.doubts;
    read
}

/// The clients of a log, in order.
pub(crate) fn clients(log: &str) -> Vec<String> {
    read(log)
        .requests
        .into_iter()
        .map(|(client, _)| client)
        .collect()
}
