//! `earrrl suggest`, `earrrl simulate` and the report, from the outside.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod command;

use std::fs;

use command::{earrrl, logs};

fn log() -> String {
    logs().join("access.log").to_str().unwrap().to_owned()
}

#[test]
fn the_report_stands_alone() {
    let hostile = "192.0.2.1 - <script>alert(1)</script> [14/Nov/2023:22:20:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fs::write(&path, hostile.repeat(50) + &fs::read_to_string(log()).unwrap()).unwrap();
    let path = path.to_str().unwrap();
    let rules = ["--rule", "recent-average 1/s half-life=10s", "--rule", "gcra 1/s burst=10"];
    let arguments = [&["replay", path, "--output", "html", "--key", "user"], &rules[..]].concat();
    let page = earrrl(&arguments).out;
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !page.contains("<script"));
    // Nothing is loaded from anywhere; the one address is the name of the SVG language.
    let addresses = page.matches("http").count();
    assert_eq!(addresses, page.matches("http://www.w3.org/2000/svg").count() + 1, "and http-equiv");
    assert!(!page.contains("url(") && !page.contains("src="));
    assert_eq!(page.matches("<svg").count(), 4);
    let long = fs::read_to_string(path).unwrap().replace("<script>", &"long".repeat(2000));
    fs::write(path, long).unwrap();
    assert!(earrrl(&arguments).out.contains(&format!("<h3>{}…</h3>", "long".repeat(50))));
    let sorted = earrrl(&[&arguments[..], &["--assume-sorted"]].concat());
    assert_eq!((sorted.code, sorted.err.lines().count()), (Some(2), 1));
    let hidden = earrrl(&["replay", &log(), "--output", "html", "--anonymize", rules[0], rules[1]]);
    assert!(hidden.out.contains("client-") && !hidden.out.contains("203.0.113"));
}

#[test]
fn figures_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (svg, png) = (path("a.svg"), path("a.png"));
    let rule = ["--rule", "fixed-window 60/1m"];
    let plotted = |arguments: &[&str], file: &str| {
        let outcome = earrrl(&[arguments, &["--plot", file]].concat());
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
        fs::read(file).unwrap()
    };
    let client = ["--client", "a steady 2/s"];
    let simulate = [&["simulate", "--duration", "90s"], &rule[..], &client].concat();
    let log = log();
    let replay = [&["replay", "--assume-sorted"], &rule[..], &[&log]].concat();
    for arguments in [&simulate[..], &replay, &["suggest", &log, "--half-life", "10s"]] {
        assert!(plotted(arguments, &svg).starts_with(b"<svg"));
        assert!(plotted(arguments, &png).starts_with(b"\x89PNG"));
    }
    for wrong in ["a.gif", "/nowhere/a.svg"] {
        let wrong = earrrl(&[&simulate[..], &["--plot", wrong]].concat());
        assert_eq!((wrong.code, wrong.err.lines().count()), (Some(2), 1));
    }
}

#[test]
fn what_is_suggested_touches_no_more_than_it_may() {
    for (touch, clients) in [("0", 0), ("1.2%", 1), ("3%", 2), ("0.06", 5)] {
        let found = earrrl(&["suggest", &log(), "--half-life", "10s", "--touch", touch]);
        assert_eq!((found.code, found.err.as_str()), (Some(0), ""));
        let rule = found.out.split('\'').nth(1).unwrap();
        assert!(rule.starts_with("recent-average ") && rule.ends_with(" half-life=10s strict"));
        let replayed = earrrl(&["replay", &log(), "--rule", rule, "--output", "json"]).out;
        let replayed: serde_json::Value = serde_json::from_str(&replayed).unwrap();
        assert_eq!(replayed["rules"][0]["clients_limited"], clients, "{touch}: {rule}");
        let told =
            found.out.contains(&format!("({clients}) are touched by this limit: {clients} "));
        assert!(told, "{}", found.out);
    }
    for (option, value) in [("--half-life", "10"), ("--half-life", "1us"), ("--touch", "100%")] {
        let outcome = earrrl(&["suggest", &log(), "--half-life", "1m", option, value]);
        assert_eq!((outcome.code, outcome.err.lines().count()), (Some(2), 1));
        assert!(outcome.err.contains(option), "{}", outcome.err);
    }
}

#[test]
fn a_table_of_limits_agrees_with_replay() {
    let found = earrrl(&["suggest", &log(), "--half-life", "10s"]).out;
    let row = found.lines().find(|line| line.trim_start().starts_with("1/s ")).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    // What another program counted for `recent-average 1/s half-life=10s strict`.
    assert_eq!((columns[1], columns[2], columns[5]), ("15", "2", "195"));
}

#[test]
fn a_scenario_from_a_file_or_from_flags() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scenario");
    let text = "rule = fixed-window 60/1m\nclient = greedy steady 5/3s until=150s\n\
                client = greedy steady 1/s from=150s\n";
    fs::write(&path, text).unwrap();
    let file = ["simulate", path.to_str().unwrap()];
    let flags = [
        "simulate",
        "--rule",
        "fixed-window 60/1m",
        "--client",
        "greedy steady 5/3s until=150s",
        "--client",
        "greedy steady 1/s from=150s",
    ];
    let table = earrrl(&file).out;
    assert!(table.contains("400        300  75.0 %"), "{table}");
    assert_eq!(earrrl(&flags).out, table);
    let csv = earrrl(&[&file[..], &["--output", "csv"]].concat()).out;
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("rule,time,client,cost,allowed,rate,remaining,retry_after"));
    assert_eq!(lines.clone().count(), 400);
    assert_eq!(lines.filter(|line| line.contains(",true,")).count(), 300);
    let random = |seed| {
        let client = ["--client", "r random 5/s", "--seed", seed, "--output", "csv"];
        earrrl(&[&["simulate", "--rule", "gcra 1/s burst=5"], &client[..]].concat()).out
    };
    assert_eq!(random("7"), random("7"));
    assert_ne!(random("7"), random("8"));
    let mistakes = [&["simulate"][..], &["simulate", "/nowhere"], &["simulate", "--figure", "x"]];
    for arguments in mistakes.into_iter().chain([&["simulate", "/dev/zero"][..]]) {
        let outcome = command::within_memory(100_000, arguments);
        assert_eq!((outcome.code, outcome.err.lines().count()), (Some(2), 1), "{outcome:?}");
    }
}
