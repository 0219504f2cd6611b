//! Tests which part of a log line `earrrl replay` takes as the client, whatever surrounds the
//! lines.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;

use crate::command::{earrrl, earrrl_fed, logs};
use serde_json::Value;

/// The number of columns at which help texts are wrapped.
const HELP_WIDTH: usize = 100;

const RULE: [&str; 2] = ["--rule", "recent-average 1/s half-life=10s strict"];

fn replayed(text: &str, arguments: &[&str]) -> Value {
    let arguments = [&["replay", "--output", "json"], &RULE[..], arguments].concat();
    let outcome = earrrl_fed(&arguments, text.as_bytes());
    serde_json::from_str(&outcome.out).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

/// Returns what the command writes about a log to standard error.
fn told(text: &str, arguments: &[&str]) -> String {
    earrrl_fed(
        &[&["replay"], &RULE[..], arguments].concat(),
        text.as_bytes(),
    )
    .err
}

fn keys(summary: &Value) -> Vec<&str> {
    let top = summary["rules"][0]["top"].as_array().unwrap();
    top.iter()
        .map(|offender| offender["key"].as_str().unwrap())
        .collect()
}

fn log(name: &str) -> String {
    fs::read_to_string(logs().join(name)).unwrap()
}

#[test]
fn an_envelope_changes_nothing() {
    let docker = |line: &str| {
        let log = format!("{line}\n");
        serde_json::json!({"log": log, "stream": "stdout", "time": "2023-11-14T00:00:00Z"})
            .to_string()
    };
    for name in ["access.log", "vhost.log", "access.jsonl"] {
        let plain = log(name);
        let expected = replayed(&plain, &[]);
        let wrapped = |wrap: &dyn Fn(&str) -> String| -> String {
            plain.lines().map(|line| wrap(line) + "\n").collect()
        };
        for text in [
            wrapped(&|line| format!("<190>Nov 14 12:00:00 web nginx: {line}")),
            wrapped(&|line| format!("<190>1 2023-11-14T12:00:00Z web nginx 7 - - {line}")),
            wrapped(&|line| format!("2023-11-14T12:00:00.5+01:00 web nginx[7]: {line}")),
            wrapped(&|line| format!("2023-11-14T12:00:00.123456789Z stdout F {line}")),
            wrapped(&|line| format!("web-1  | {line}")),
            wrapped(&docker),
        ] {
            let found = replayed(&text, &[]);
            assert_eq!(found["formats"], expected["formats"], "{}", &text[..150]);
            assert_eq!(found["rules"], expected["rules"], "{}", &text[..150]);
            let format = expected["formats"][0].as_str().unwrap();
            assert_eq!(
                replayed(&text, &["--format", format])["rules"],
                expected["rules"]
            );
        }
    }
}

#[test]
fn a_piece_of_a_long_line_is_no_request() {
    let request = r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "-""#;
    let forged = request.replace("192.0.2.7", "9.9.9.9");
    let time = "2016-10-06T00:17:09.669794202Z";
    let pieces =
        format!("{time} stdout P {request}\n{time} stdout F {forged}\n{time} stdout F {request}\n");
    let found = replayed(&pieces, &[]);
    assert_eq!(
        (found["events"].as_u64(), found["clients"].as_u64()),
        (Some(2), Some(1))
    );
}

#[test]
fn what_is_no_client_is_an_error_that_lists_the_formats() {
    let line = r#"unix: - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "-""#;
    let error = told(&format!("{line}\n").repeat(3), &[]);
    assert!(
        error.contains("vhost, combined, common, json") && error.contains("haproxy"),
        "{error}"
    );
    assert!(
        error.contains("--pattern") && error.lines().count() == 1,
        "{error}"
    );
    // If the user names the format, it is not detected.
    assert!(!told(line, &["--format", "combined"]).contains("no log format"));
}

#[test]
fn a_doubtful_client_is_told() {
    let line = |client: &str| {
        format!("{client} - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n")
    };
    let one = line("192.0.2.7").repeat(100);
    assert!(told(&one, &[]).contains("all 100 requests have the same client, 192.0.2.7"));
    assert!(!told(&one, &["--anonymize"]).contains("192.0.2.7"));
    let each: String = (0..100).map(|n| line(&format!("192.0.2.{n}"))).collect();
    assert!(told(&each, &[]).contains("each of 100 requests has a client of its own"));
    assert!(!told(&line("192.0.2.7"), &[]).contains("requests"));
    assert!(!told(&log("access.log"), &[]).contains("is it the client"));
    let balancers = [line("10.0.0.1"), line("10.0.0.2")].concat().repeat(50);
    let warning = told(&balancers, &[]);
    assert!(
        warning.contains("load balancers") && warning.contains("--key forwarded_for"),
        "{warning}"
    );
    // Two load balancers beside public clients, such as monitors that ask the server itself.
    let warning = told(&(balancers.clone() + &line("192.0.2.7")), &[]);
    assert!(
        warning.contains("100 of 101 requests come from 2 private clients"),
        "{warning}"
    );
    let public: String = (1..100).map(|n| line(&format!("192.0.2.{n}"))).collect();
    assert!(told(&(balancers.clone() + &public), &[]).contains("are they load balancers"));
    // Many internal clients beside public ones, and two among many public ones.
    let internal: String = (0..200).map(|n| line(&format!("10.0.1.{n}"))).collect();
    assert!(!told(&(internal + &line("192.0.2.7")), &[]).contains("load balancers"));
    assert!(!told(&(balancers + &public.repeat(2)), &[]).contains("load balancers"));
}

#[test]
fn any_line_can_be_described() {
    let rows: Vec<String> = (0..30)
        .map(|n| format!("17.05.2015 10:05:{n:02}|ann,lee|3|x\n"))
        .collect();
    let text = rows.concat();
    let pattern = [
        "--pattern",
        r"^(?<time>[^|]+)\|(?<key>[^|]*)\|(?<cost>\d+)",
        "--time-format",
        "%d.%m.%Y %H:%M:%S",
    ];
    let found = replayed(&text, &pattern);
    assert_eq!(
        (found["events"].as_u64(), keys(&found)),
        (Some(30), vec!["ann,lee"])
    );
    assert!(
        found["rules"][0]["denied"].as_u64() > Some(20),
        "costs count"
    );
    let combined = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
    let apache = r#"%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i""#;
    let expected = replayed(&log("access.log"), &[]);
    for notation in [combined, apache] {
        let found = replayed(&log("access.log"), &["--log-format", notation]);
        assert_eq!(found["rules"], expected["rules"], "{notation}");
    }
    for (arguments, error) in [
        (["--pattern", "("], "unclosed group"),
        (["--pattern", "(?<key>x)"], "a group for the time"),
        (["--log-format", "$remote_addr"], "a field with the time"),
    ] {
        let outcome = earrrl(&[&["replay"], &RULE[..], &arguments].concat());
        assert!(outcome.err.contains(error), "{outcome:?}");
    }
}

#[test]
fn the_last_forwarded_address_counts() {
    let line = r#"10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "curl" "9.9.9.9, 2001:db8::7""#;
    let text = format!("{line}\n").repeat(40);
    for key in ["forwarded_for", "http_x_forwarded_for"] {
        assert_eq!(keys(&replayed(&text, &["--key", key])), ["2001:db8::/64"]);
    }
    let listed = text.replace("10.0.0.1 -", "9.9.9.9, 192.0.2.7 -");
    assert_eq!(keys(&replayed(&listed, &[])), ["192.0.2.7"]);
}

#[test]
fn the_lines_of_the_documentation_are_read() {
    let manual = fs::read_to_string(logs().join("../../docs/replay.md")).unwrap();
    let table = manual
        .split("| format | written by")
        .nth(1)
        .unwrap()
        .split("\n\n")
        .next()
        .unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(2)
        .map(|row| row.split(" | ").collect())
        .collect();
    assert!(rows.len() >= 15, "{rows:?}");
    for row in rows {
        let format = row[0].split('`').nth(1).unwrap();
        let lines: Vec<&str> = row[2].split('`').skip(1).step_by(2).take(2).collect();
        let text = if format == "csv" {
            lines.join("\n")
        } else {
            row[2].replace("` and then `", "\n")
        };
        let text = text.replace('⇥', "\t");
        let found = replayed(text.trim_matches('`'), &["--format", format]);
        assert_eq!(found["events"], 1, "{format}: {text}");
        if format != "sshd-lines" && format != "csv" {
            let found = replayed(text.trim_matches('`'), &[]);
            assert_eq!(found["formats"][0], format, "{text}");
        }
    }
}

/// Joins the lines of a help text that were wrapped at its width, and leaves the others.
fn unwrapped(help: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (mut joined, mut last): (String, &str) = Default::default();
    for line in help.lines() {
        let first_word = line.split_whitespace().next().map_or(0, str::len);
        let is_wrapped = last.len() + 1 + first_word > HELP_WIDTH && indent(line) == indent(last);
        joined += if is_wrapped { " " } else { "\n" };
        joined += if is_wrapped { line.trim_start() } else { line };
        last = line;
    }
    joined
}

#[test]
fn the_lines_of_the_help_are_read() {
    let help = unwrapped(&earrrl(&["replay", "--help"]).out);
    let formats = help.split("\nFormats, with a line of each").nth(1).unwrap();
    let mut found: Vec<(&str, String)> = Vec::new();
    for line in formats.lines() {
        match (line.strip_prefix("      "), line.strip_prefix("  ")) {
            (Some(line), _) => found.last_mut().unwrap().1 += &format!("{line}\n"),
            (None, Some(named)) => {
                found.push((named.split([',', ' ']).next().unwrap(), String::new()))
            }
            (None, None) => {}
        }
    }
    assert_eq!(found.len(), 27, "{found:?}");
    for (format, lines) in found {
        assert_eq!(
            replayed(&lines, &["--format", format])["events"],
            1,
            "{format}: {lines}"
        );
        if format != "sshd-lines" {
            assert_eq!(replayed(&lines, &[])["formats"][0], format, "{lines}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        earrrl(&["man", folder.path().to_str().unwrap()]).code,
        Some(0)
    );
    let page = fs::read_to_string(folder.path().join("earrrl-replay.1")).unwrap();
    assert!(page.contains("limiting requests, excess") && page.contains("haproxy"));
}

#[test]
fn a_pasted_statement_is_a_notation() {
    let line =
        r#"192.0.2.7 - ann [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl/8" "-""#;
    let nginx = r#"log_format  main  '$remote_addr - $remote_user [$time_local] "$request" '
                      '$status $body_bytes_sent "$http_referer" '
                      '"$http_user_agent" "$http_x_forwarded_for"';"#;
    let apache = r#"LogFormat "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\" \"%{X-Forwarded-For}i\"" combined"#;
    let json = r#"log_format json escape=json '{"time":"$time_iso8601","ip":"$remote_addr"}';"#;
    for (notation, line) in [
        (nginx, line),
        (apache, line),
        (json, r#"{"time":"2015-05-17T10:05:03Z","ip":"192.0.2.7"}"#),
    ] {
        let found = replayed(line, &["--log-format", notation]);
        assert_eq!(
            (&found["events"], &found["from"]),
            (&1.into(), &1_431_857_103.0.into()),
            "{notation}"
        );
        let top = replayed(
            line,
            &["--log-format", notation, "--rule", "fixed-window 0.5/1m"],
        );
        assert_eq!(top["rules"][1]["top"][0]["key"], "192.0.2.7", "{notation}");
    }
}

#[test]
fn haproxys_clf_is_a_common_log() {
    let line = r#"192.0.2.7 - - [06/Feb/2009:12:14:14 +0000] "GET /a HTTP/1.1" 200 2750 "" "" 33317 655 "http-in" "static" "srv1" 10 0 30 69 109 ---- 1 1 1 1 0 0 0 "" """#;
    for line in [
        line.to_owned(),
        format!("Feb  6 12:14:14 localhost haproxy[14389]: {line}"),
    ] {
        let found = replayed(
            &line,
            &["--key", "client,path", "--rule", "fixed-window 0.5/1m"],
        );
        assert_eq!(found["rules"][1]["top"][0]["key"], "192.0.2.7,/a", "{line}");
    }
}
