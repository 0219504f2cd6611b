//! Reads logs as the command line does.
#![allow(clippy::unwrap_used, reason = "a helper of tests")]

use std::fs;
use std::path::PathBuf;

use earrrl_logs::format::{Field, Hints};
use earrrl_logs::line::{Skip, time};
use earrrl_logs::reading::{
    ClientNumbers, Costs, Filter, LogReader, ReadError, Requests, Selection,
};
use earrrl_logs::suggest::{Rows, Sweep, profile_texts};
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
    let hints = Hints {
        year: Some(2024),
        ..Hints::default()
    };
    let mut reader = reader(hints, Prefixes::new(32, 128));
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

/// Returns a reader with the usual settings, and a file with the log.
fn reader_of(log: &str) -> (LogReader, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, log).unwrap();
    (reader(Hints::default(), Prefixes::default()), file)
}

/// Returns the requests of a log in the order of their times, and the reader that has read them.
pub(crate) fn rows_of(log: &str, fields: impl Fn(&str) -> Vec<Field>) -> (Rows, LogReader) {
    let (reader, file) = reader_of(log);
    let mut reader = reader.with_texts(profile_texts(fields));
    let mut rows = Rows::default();
    let mut take = |_: &ClientNumbers, requests: &Requests<'_>| rows.extend(requests);
    reader
        .read(file.path(), |source| source, &mut take)
        .unwrap();
    rows.sort();
    (rows, reader)
}

/// Returns a reader of all requests, which tells clients apart by their addresses.
fn reader(hints: Hints, prefixes: Prefixes) -> LogReader {
    LogReader::new(Selection {
        format: None,
        hints,
        key: "client".parse().unwrap(),
        prefixes,
        costs: Costs::default(),
        filter: Filter::default(),
    })
}

#[test]
fn each_request_has_the_first_text_of_each_list_of_fields() {
    let line = |client: &str, user: &str| {
        format!(
            "{client} - {user} [01/Jan/2024:12:00:00 +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"x\"\n"
        )
    };
    let log = line("192.0.2.7", "ann") + &line("192.0.2.8", "-");
    let (reader, file) = reader_of(&log);
    let lists = [&[Field::Named("x".into()), Field::User][..], &[Field::Path]];
    let mut reader = reader.with_texts(lists.map(<[Field]>::to_vec).into());
    let mut found: Vec<Vec<Option<Vec<u8>>>> = Vec::new();
    let mut take = |_: &ClientNumbers, requests: &Requests<'_>| {
        for place in 0..requests.len() {
            let texts = requests.texts(place).map(|text| text.map(<[u8]>::to_vec));
            found.push(texts.collect());
        }
        Ok(())
    };
    reader
        .read(file.path(), |source| source, &mut take)
        .unwrap();
    let path = Some(b"/a".to_vec());
    assert_eq!(found, [[Some(b"ann".to_vec()), path.clone()], [None, path]]);
}

#[test]
fn requests_that_cost_differently_are_held_in_order_with_those_before() {
    let fields = |_: &str| Vec::new();
    let (rows, _) = rows_of("time,key,cost\n30,a,1\n20,b,1\n10,a,5\n40,b,1\n", fields);
    let found: Vec<(u64, u32, String)> = rows
        .requests()
        .map(|request| {
            (
                request.time / 1_000_000_000,
                request.client,
                request.cost.to_string(),
            )
        })
        .collect();
    let expected = [(10, 0, "5"), (20, 1, "1"), (30, 0, "1"), (40, 1, "1")];
    assert_eq!(
        found,
        expected.map(|(time, client, cost)| (time, client, cost.to_owned()))
    );
    assert_eq!(rows.unit(), "cost");
}

#[test]
fn api_keys_are_the_users_of_a_log_that_names_nobody() {
    let line = |minute: u32, client: u32, more: &str| {
        format!(
            "{{\"time\":{},\"client_ip\":\"192.0.2.{client}\"{more}}}\n",
            1_704_110_400 + minute * 60
        )
    };
    let key = |number: u32| format!(",\"x_api_key\":\"key-{number}\"");
    let user_rule = |last: &str| {
        let mut log = String::new();
        for minute in 0..60 {
            (0..30).for_each(|client| log += &line(minute, client, &key(client)));
            (100..150).for_each(|client| log += &line(minute, client, &key(7)));
        }
        log += &line(60, 1, last);
        let fields = |name: &str| match name {
            "header:x-api-key" => vec![Field::new("x_api_key")],
            _ => Vec::new(),
        };
        let (rows, _) = rows_of(&log, fields);
        let minute = [std::time::Duration::from_secs(60)];
        let sweep = Sweep::new(&minute, |_| 1, || rows.requests()).unwrap();
        let parts = rows.parts(&minute, &|_| 1).unwrap();
        rows.rules(None, parts, &sweep, std::iter::empty()).unwrap()
    };
    let rules = user_rule("");
    let touched = rules.user.unwrap().touched;
    let touched: Vec<&[u8]> = touched
        .iter()
        .map(|user| rules.users.key(user.number))
        .collect();
    assert_eq!(
        (touched, rules.user_part),
        (vec![&b"key-7"[..]], "header:x-api-key")
    );
    let named = user_rule(",\"user\":\"ann\"");
    assert!(named.user.is_none() && named.user_part == "user");
}
