//! Tests `earrrl replay` as a user runs it: the answer does not depend on the format of the log,
//! and an error is one clear line.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use crate::command;
use crate::command::{Outcome, earrrl, earrrl_fed, logs, within_memory};
use serde_json::Value;

const RULES: [&str; 6] = [
    "--rule",
    "recent-average 1/s half-life=10s strict",
    "--rule",
    "fixed-window 60/1m",
    "--rule",
    "gcra 1/s burst=10",
];

/// The numbers of denied requests under the rules, counted by another program.
const DENIED: [u64; 3] = [195, 109, 169];

fn replay(arguments: &[&str]) -> Outcome {
    earrrl(&[&["replay", "--year", "2023"], &RULES[..], arguments].concat())
}

fn json(arguments: &[&str]) -> Value {
    let outcome = replay(&[&["--output", "json"], arguments].concat());
    serde_json::from_str(&outcome.out).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

fn denied(summary: &Value) -> Vec<u64> {
    summary["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["denied"].as_u64().unwrap())
        .collect()
}

fn log(name: &str) -> String {
    logs().join(name).to_str().unwrap().to_owned()
}

/// Writes a file with this content. It exists as long as the returned directory.
fn file(name: &str, content: &[u8]) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join(name);
    fs::write(&path, content).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}

fn compressed(mut source: impl std::io::Read) -> Vec<u8> {
    let mut content = Vec::new();
    source.read_to_end(&mut content).unwrap();
    content
}

fn gz(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn every_format_gives_the_same_decisions() {
    let formats = [
        ("access.log", "combined"),
        ("common.log", "common"),
        ("vhost.log", "vhost"),
        ("access.jsonl", "json"),
        ("access.csv", "csv"),
        ("sshd.log", "sshd"),
    ];
    for (name, format) in formats {
        let found = json(&[&log(name)]);
        assert_eq!(found["formats"], serde_json::json!([format]));
        assert_eq!(denied(&found), DENIED, "{name}");
        assert_eq!(found["rules"][0]["clients_limited"], 2);
        assert_eq!(found["rules"][0]["top"][0]["key"], "203.0.113.99");
        assert_eq!(found["rules"][0]["top"][0]["denied"], 154);
        assert_eq!(
            json(&["--format", format, &log(name)])["rules"],
            found["rules"],
            "{name}"
        );
    }
    let lines = json(&["--format", "sshd-lines", &log("sshd.log")]);
    assert_eq!(denied(&lines), DENIED);
}

#[test]
fn compressed_or_in_pieces_or_from_standard_input() {
    let text = fs::read(log("access.log")).unwrap();
    let expected = replay(&[&log("access.log")]).out;
    let cut = text.len() / 2;
    let members = [gz(&text[..cut]), gz(&text[cut..])].concat();
    let frames = [&text[..cut], &text[cut..]]
        .map(|part| zstd::encode_all(part, 1).unwrap())
        .concat();
    let bzip2 = compressed(bzip2::read::BzEncoder::new(
        &text[..],
        bzip2::Compression::best(),
    ));
    let xz = compressed(liblzma::read::XzEncoder::new(&text[..], 6));
    for content in [&text, &members, &frames, &bzip2, &xz] {
        let (_directory, path) = file("log", content);
        assert_eq!(replay(&[&path]).out, expected);
        let arguments = [&["replay"], &RULES[..], &["-"]].concat();
        assert_eq!(earrrl_fed(&arguments, content).out, expected);
    }
    let lines = text
        .iter()
        .enumerate()
        .filter(|(_, b)| **b == b'\n')
        .map(|(at, _)| at + 1);
    let cut = lines.clone().nth(lines.count() / 2).unwrap();
    let (_first, first) = file("a", &text[..cut]);
    let (_second, second) = file("b", &text[cut..]);
    assert_eq!(replay(&[&second, &first]).out, expected);
}

#[test]
fn sorted_or_not() {
    let text = fs::read_to_string(log("access.log")).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    let sorted = json(&[&log("access.log")]);
    assert_eq!(json(&["--assume-sorted", &log("access.log")]), sorted);
    let half = lines.len() / 2;
    lines.rotate_left(half);
    let (_directory, path) = file("log", lines.join("\r\n").as_bytes());
    assert_eq!(denied(&json(&[&path])), DENIED);
    // With `--assume-sorted`, a request that is out of order counts at the latest time so far.
    assert_ne!(denied(&json(&["--assume-sorted", &path])), DENIED);
}

#[test]
fn lines_that_go_back_are_counted() {
    let rows = "time,key\n10,a\n20,a\n15,b\n30,a\n12,a\n";
    let arguments = [&["replay"], &RULES[..], &["--assume-sorted"]].concat();
    let told = earrrl_fed(&arguments, rows.as_bytes()).err;
    assert!(
        told.contains("2 of 5 requests are earlier than one before them"),
        "{told}"
    );
    let sorted = [&["replay"], &RULES[..]].concat();
    assert_eq!(earrrl_fed(&sorted, rows.as_bytes()).err, "");
}

#[test]
fn a_line_an_event_and_rule() {
    let outcome = replay(&["--output", "jsonl", &log("access.csv")]);
    let lines: Vec<Value> = outcome
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 400 * 3);
    for (number, line) in lines.iter().enumerate() {
        let fields: Vec<&String> = line.as_object().unwrap().keys().collect();
        let expected = [
            "allowed",
            "cost",
            "key",
            "rate",
            "remaining",
            "reset_after",
            "retry_after",
            "rule",
            "t",
        ];
        assert_eq!(fields, expected);
        assert_eq!(line["rule"], number % 3);
        assert_eq!(line["rate"].is_null(), number % 3 == 2);
    }
    assert!(lines.is_sorted_by_key(|line| line["t"].as_u64()));
    let denied = |rule| {
        lines
            .iter()
            .filter(|l| l["rule"] == rule && l["allowed"] == false)
            .count()
    };
    assert_eq!([0, 1, 2].map(denied), DENIED.map(|n| n as usize));
}

#[test]
fn keys_are_opaque_in_csv_and_costs_count() {
    let text =
        b"time,key,cost\n1111111111.5,\"a \"\"b\"\"\",3\n1111111112.000000001,2001:db8::1,0.5\n";
    let rule = ["--rule", "token-bucket 5 refill=1/s", "--output", "jsonl"];
    let arguments = [&["replay"], &rule[..], &["-"]].concat();
    let expected = r#"{"t":1111111111.5,"key":"a \"b\"","rule":0,"cost":3,"allowed":true,"rate":null,"remaining":2,"retry_after":0,"reset_after":3}
{"t":1111111112.000000001,"key":"2001:db8::1","rule":0,"cost":0.5,"allowed":true,"rate":null,"remaining":4,"retry_after":0,"reset_after":0.5}
"#;
    assert_eq!(earrrl_fed(&arguments, text).out, expected);
    let options = [
        "--cost",
        "path:/login=5",
        "--key",
        "path,client",
        "--ipv4-prefix",
        "8",
    ];
    let found = json(&[&options[..], &[&log("access.log")]].concat());
    assert_eq!(found["rules"][2]["top"][0]["key"], "/login,203.0.0.0/8");
}

#[test]
fn untidy_lines_are_accounted_for() {
    let line = r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;
    let long = format!("{line}{}", "x".repeat(70_000));
    let eight = format!("{line} {}", "y".repeat(8_000));
    let lines = [
        line,
        &format!("\"{line}\""),
        "",
        "\u{1}\u{2}\0 control",
        &long,
        &eight,
        r#"- - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#,
        r#"2001:db8::1 - - [16/May/2015:12:05:03 +0200] "GET / HTTP/1.1" 200 5"#,
        r#"192.0.2.7 - - [31/May/1215:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#,
        "192.0.2.7 - - [17/May/2015:10:05",
    ];
    let (_directory, path) = file("log", lines.join("\n").as_bytes());
    let found = json(&[&path]);
    assert_eq!(found["lines"]["read"], 10);
    assert_eq!(found["lines"]["used"], 4);
    assert_eq!(found["lines"]["skipped"], 6);
    assert_eq!(found["events"], 4);
    assert_eq!(found["clients"], 2);
    let reasons = found["lines"]["skipped_by_reason"].as_array().unwrap();
    let counted: u64 = reasons
        .iter()
        .map(|reason| reason["lines"].as_u64().unwrap())
        .sum();
    assert_eq!(counted, 6);
    let outcome = replay(&[&path]);
    assert_eq!((outcome.code, outcome.err.lines().count()), (Some(0), 1));
    assert!(
        outcome.err.contains("10 lines read, 4 used, 6 skipped"),
        "{}",
        outcome.err
    );
    assert!(!outcome.err.contains(['\u{1}', '\0']));
}

#[test]
fn what_cannot_be_read_is_told_in_one_line() {
    let gz_cut = gz(&fs::read(log("access.log")).unwrap());
    let cases: [(&[u8], &str); 8] = [
        (b"", "/log: the log is empty"),
        (b"\n\n", "is blank"),
        (b"\x7fELF\0\0\0\x01", "is a binary file"),
        (
            b"no log\nat all\n",
            "no log format fits its first lines (`no log`)",
        ),
        (b"time,key\n", "the log is empty"),
        (
            b"time,key\nx,y\n",
            "none of 1 lines is usable: 1 without a usable time",
        ),
        (&gz_cut[..20], "incomplete"),
        (b"\x28\xb5\x2f\xfd\x00", "incomplete"),
    ];
    for (content, expected) in cases {
        let (_directory, path) = file("log", content);
        let outcome = replay(&[&path]);
        assert_eq!(
            (outcome.code, outcome.out.as_str()),
            (Some(2), ""),
            "{outcome:?}"
        );
        assert_eq!(outcome.err.lines().count(), 1, "{outcome:?}");
        assert!(outcome.err.contains(expected), "{outcome:?}");
    }
    for (arguments, expected) in [
        (
            &["replay", "/nowhere.log", "--rule", "gcra 1/s burst=1"][..],
            "no such file",
        ),
        (
            &["replay", "/sys", "--rule", "gcra 1/s burst=1"],
            "has no files",
        ),
        (
            &["replay", "x.log", "--rule", "gcra 1/s burst=x"],
            "column 1",
        ),
        (
            &[
                "replay",
                "x.log",
                "--rule",
                "gcra 1/s burst=1",
                "--cost",
                "-1",
            ],
            "--cost",
        ),
        (
            &[
                "replay",
                "x.log",
                "--rule",
                "gcra 1/s burst=1",
                "--format",
                "xml",
            ],
            "expected auto",
        ),
    ] {
        let outcome = earrrl(arguments);
        assert_eq!(
            (outcome.code, outcome.out.as_str()),
            (Some(2), ""),
            "{outcome:?}"
        );
        assert_eq!(outcome.err.lines().count(), 1, "{outcome:?}");
        assert!(outcome.err.contains(expected), "{outcome:?}");
    }
}

#[test]
fn what_can_be_read_is_used() {
    let text = fs::read(log("access.log")).unwrap();
    let whole = gz(&text);
    let (_directory, cut) = file("log.gz", &whole[..whole.len() / 2]);
    let outcome = replay(&[&cut]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.out.contains("most denied"), "{outcome:?}");
    assert!(
        outcome.err.contains("what came before it is used"),
        "{outcome:?}"
    );
    let both = replay(&["/nowhere.log", &log("access.log")]);
    assert_eq!((both.code, both.err.lines().count()), (Some(2), 1));
    assert_eq!(both.out, replay(&[&log("access.log")]).out);
}

#[test]
fn an_empty_log_among_others_is_no_error() {
    // A log file is empty just after its rotation.
    let (_directory, empty) = file("log", b"");
    let outcome = replay(&[&empty, &log("access.log")]);
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
}

#[test]
fn a_hole_of_zeros_hides_no_client() {
    // A log that is truncated while its writer keeps its position continues after a hole of zero
    // bytes.
    let text = fs::read(log("access.log")).unwrap();
    let (_directory, holed) = file("log", &[&[0; 5000], &text[..]].concat());
    assert_eq!(replay(&[&holed]).out, replay(&[&log("access.log")]).out);
}

#[test]
fn an_example_says_where_it_stands() {
    let line = fs::read_to_string(log("access.log"))
        .unwrap()
        .lines()
        .next()
        .unwrap()
        .to_owned();
    let (_directory, long) = file(
        "log",
        format!("{}\n{line}\n", "x".repeat(700_000)).as_bytes(),
    );
    let outcome = replay(&[&log("access.log"), &long]);
    assert!(
        outcome.err.contains(&format!("{long}:1: `xxx")),
        "{outcome:?}"
    );
}

#[test]
fn what_a_format_does_not_have_is_told() {
    for (arguments, expected) in [
        (
            &["--key", "clinet"],
            "is combined, which has no field `clinet`; it has client, user",
        ),
        (
            &["--key", "clientip"],
            "http_x_forwarded_for; did you mean `client`?",
        ),
        (&["--cost", "field:size"], "no field `size`"),
        (
            &["--key-field", "user"],
            "--key-field are for json, csv and logfmt",
        ),
        (&["--key", "client,"], "'--key"),
        (&["--key", "ident"], "without the key ident"),
        (
            &["--cost", "path:/a*b=5"],
            "expected a path, with a * at its end only",
        ),
    ] {
        let outcome = replay(&[&arguments[..], &[&log("access.log")]].concat());
        assert_eq!(
            (outcome.code, outcome.err.lines().count()),
            (Some(2), 1),
            "{outcome:?}"
        );
        assert!(outcome.err.contains(expected), "{outcome:?}");
    }
    let outcome = replay(&["--key", "path", &log("sshd.log")]);
    assert!(outcome.err.contains("it has user, client"), "{outcome:?}");
}

#[test]
fn memory_is_bounded() {
    let line = fs::read_to_string(log("access.log")).unwrap();
    let line = line.lines().next().unwrap().to_owned() + "\n";
    let endless = vec![b'x'; 100_000_000];
    let bomb = gz(&vec![0; 300_000_000]);
    let expected = "1 lines read, 0 used";
    for (content, used) in [
        (endless.clone(), false),
        (bomb, false),
        (
            [line.as_bytes(), &endless, b"\n", line.as_bytes()].concat(),
            true,
        ),
    ] {
        let (_directory, path) = file("log", &content);
        let arguments = [&["replay"], &RULES[..2], &[&path]].concat();
        let outcome = within_memory(64_000, &arguments);
        assert_eq!(outcome.code, Some(if used { 0 } else { 2 }), "{outcome:?}");
        assert_eq!(outcome.err.lines().count(), 1, "{outcome:?}");
        assert!(used || outcome.err.contains("64 KiB") || outcome.err.contains(expected));
    }
}

#[test]
fn nobody_is_recognized_when_anonymous() {
    let line = "203.0.113.99 is no log line\n";
    let text = line.to_owned() + &fs::read_to_string(log("access.log")).unwrap();
    let (_directory, path) = file("log", text.as_bytes());
    for output in ["table", "json", "jsonl"] {
        let outcome = replay(&["--anonymize", "--output", output, &path]);
        assert_eq!(outcome.code, Some(0));
        let told = outcome.out + &outcome.err;
        assert!(told.contains("client-"));
        assert!(
            !told.contains("203.0.113") && !told.contains("10.0."),
            "{told}"
        );
    }
    let (_directory, path) = file("log", line.as_bytes());
    assert!(!replay(&["--anonymize", &path]).err.contains("203.0.113"));
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let outcome = command::earrrl_unread(&["replay", &log("access.log"), RULES[0], RULES[1]]);
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
}

#[test]
fn help_has_an_example() {
    let outcome = earrrl(&["replay", "--help"]);
    assert_eq!(outcome.code, Some(0));
    assert!(outcome.out.contains("Example:\n  earrrl replay"));
}

#[test]
fn only_requests_that_are_asked_for() {
    let line = |client: u32, second: u32, request: &str, status: u32| {
        format!(
            "192.0.2.{client} - - [17/May/2015:10:05:{second:02} +0000] \"{request}\" {status} 5 \"-\" \"curl\"\n"
        )
    };
    let lines = [
        line(1, 0, "POST /login HTTP/1.1", 401),
        line(1, 1, "post //Login/ HTTP/1.1", 200),
        line(1, 2, "POST /a/..%2flogin?next=/ HTTP/1.1", 429),
        line(2, 3, "GET /login HTTP/1.1", 200),
        line(2, 4, "GET /login/help HTTP/1.1", 404),
        line(2, 5, "POST /loginx HTTP/1.1", 401),
    ];
    let (_directory, path) = file("log", lines.concat().as_bytes());
    let used = |arguments: &[&str]| {
        let outcome = earrrl(
            &[
                &[
                    "replay",
                    &path,
                    "--rule",
                    "gcra 1/s burst=10",
                    "--output",
                    "json",
                ],
                arguments,
            ]
            .concat(),
        );
        let summary: Value = serde_json::from_str(&outcome.out).unwrap_or_default();
        summary["lines"]["used"].as_u64().unwrap_or(0)
    };
    for (arguments, expected) in [
        (&["--where", "path=/login"][..], 4),
        (&["--where", "path=/login", "--where", "method=POST"], 3),
        (&["--where", "path=/login/*"], 5),
        (&["--where", "path=/login*"], 6),
        (&["--where", "status=401"], 2),
        (&["--where", "status=4*", "--where", "client=192.0.2.1"], 2),
        (&["--where", "client=192.0.2.2/31"], 3),
        (&["--where", "attribute:agent=curl"], 6),
        (&["--since", "2015-05-17T10:05:02Z"], 4),
        (&["--until", "2015-05-17T12:05:02+02:00"], 2),
        (&["--since", "2015-05-17", "--until", "2015-05-18"], 6),
        (&["--since", "2015-05-18"], 0),
        (&["--since", "1h"], 0),
    ] {
        assert_eq!(used(arguments), expected, "{arguments:?}");
    }
    let told = earrrl(&[
        "suggest",
        &path,
        "--where",
        "path=/login",
        "--where",
        "status=429",
    ])
    .err;
    assert!(told.contains("5 not asked for by --where\n"), "{told}");
    for (arguments, expected) in [
        (["--where", "path=login"], "`/`"),
        (["--where", "path"], "NAME=VALUE"),
        (["--since", "noon"], "2024-01-31"),
        (
            ["--where", "plan=free"],
            "no field `plan`; it has client, user, path",
        ),
    ] {
        let outcome = earrrl(&[&["suggest", &path[..]], &arguments[..]].concat());
        assert_eq!(outcome.code, Some(2));
        assert!(outcome.err.contains(expected), "{}", outcome.err);
    }
}

#[test]
fn limited_clients_are_listed_for_nginx() {
    let arguments = ["replay", &log("access.log"), RULES[0], RULES[1]];
    let list =
        |more: &[&str]| earrrl(&[&arguments[..], &["--output", "nginx-deny"], more].concat());
    let Outcome { out, .. } = list(&[]);
    let rule = "by recent-average 1/s half-life=10s strict\n";
    let worst = format!("\ndeny 203.0.113.99; # 154 of 169 requests denied (91.1 %) {rule}");
    let other = format!("\ndeny 198.51.100.23; # 41 of 60 requests denied (68.3 %) {rule}");
    assert!(
        out.starts_with("# ") && out.contains(&worst) && out.contains(&other),
        "{out}"
    );
    let few = list(&["--min-denied", "42"]);
    assert!(
        !few.out.contains(&other) && few.out.contains(&worst),
        "{few:?}"
    );
    assert!(few.err.contains("1 lost fewer than 42 requests"), "{few:?}");
    let trusted = list(&["--trusted-proxies", "203.0.113.0/24,2001:db8::1"]);
    assert!(!trusted.out.contains("203.0.113.99"), "{trusted:?}");
    assert!(
        trusted
            .err
            .contains("1 have addresses of private networks or of proxies")
    );
    assert_eq!(list(&["--trusted-proxies", "proxy"]).code, Some(2));
}

#[test]
fn limited_clients_are_listed_for_firewalls_and_tables() {
    let list = |output: &str| {
        let arguments = [
            "replay",
            &log("access.log"),
            RULES[0],
            RULES[1],
            "--expire",
            "2h",
        ];
        earrrl(&[&arguments[..], &["--output", output]].concat()).out
    };
    let nft = list("nft");
    assert!(
        nft.contains("203.0.113.99 timeout 7200s, # 154 of 169 ")
            && nft.contains("ip saddr @limited4 drop")
    );
    let csv = list("csv");
    assert!(
        csv.starts_with("client,denied,requests,expires,rule\n203.0.113.99,154,169,"),
        "{csv}"
    );
    let hidden = replay(&[&log("access.log"), "--output", "nft", "--anonymize"]);
    assert_eq!((hidden.code, hidden.out.as_str()), (Some(2), ""));
    let users = replay(&[&log("access.log"), "--output", "nft", "--key", "path"]);
    assert!(users.err.contains("are no addresses"), "{users:?}");
}

/// A line of the combined log format at a second of a day.
fn line(client: &str, second: u64, agent: &str) -> String {
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let second = second % 60;
    format!(
        "{client} - - [17/May/2015:{hour:02}:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"{agent}\"\n"
    )
}

/// The lines of 200 visitors, who each send a few requests, with one user agent each.
fn visitors() -> String {
    let of = |n: u64| {
        (0..5).map(move |m| line(&format!("198.51.100.{n}"), n * 60 + m * 9, "Mozilla/5.0"))
    };
    (0..200).flat_map(of).collect()
}

/// The list that `replay` writes for a log under `fixed-window 60/1m`.
fn deny_list(text: &str, more: &[&str]) -> Outcome {
    let (_folder, path) = file("access.log", text.as_bytes());
    let arguments = [
        "replay",
        &path,
        "--rule",
        "fixed-window 60/1m",
        "--output",
        "nginx-deny",
    ];
    earrrl(&[&arguments[..], more].concat())
}

#[test]
fn a_list_blocks_neither_offices_nor_private_networks_nor_edges_of_a_cdn() {
    let burst = |client: &str, count: u64| line(client, 40_000, "curl/8").repeat(count as usize);
    let office: String = (0..131)
        .map(|n| line("203.0.113.1", n * 30, "Mozilla/5.0"))
        .collect();
    let mut log = visitors() + &office + &burst("203.0.113.1", 61);
    for client in [
        "10.0.0.1",
        "127.0.0.1",
        "fd00::1",
        "100.64.0.9",
        "162.158.1.1",
        "2606:4700::1",
    ] {
        log += &burst(client, 150);
    }
    log += &burst("203.0.113.9", 150);
    let listed = deny_list(&log, &["--direct"]);
    let lines: Vec<&str> = listed
        .out
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    assert_eq!(
        lines,
        ["deny 203.0.113.9; # 90 of 150 requests denied (60.0 %) by fixed-window 60/1m"]
    );
    assert!(
        listed
            .err
            .contains("7 limited clients left out of the list: 1 lost fewer than 10"),
        "{listed:?}"
    );
}

#[test]
fn no_list_is_written_where_the_addresses_are_those_of_proxies() {
    let agents = [
        "Firefox", "Chrome", "Safari", "Edge", "Opera", "Vivaldi", "curl", "okhttp",
    ];
    let edges = |client: &dyn Fn(u64) -> String, agents: &[&str]| -> String {
        (0..2400u64)
            .map(|n| {
                line(
                    &client(n % 24),
                    n / 10,
                    agents[n as usize / 24 % agents.len()],
                )
            })
            .collect()
    };
    let public = |n: u64| format!("203.0.113.{n}");
    for (log, sign) in [
        (
            edges(&|n| format!("162.158.1.{n}"), &agents[..1]),
            "24 clients of a content delivery network",
        ),
        (
            edges(&|n| format!("10.0.0.{n}"), &agents[..1]),
            "all clients have private addresses",
        ),
        (
            edges(&public, &agents),
            "clients with the user agents or X-Forwarded-For of many",
        ),
        (
            edges(&public, &agents[..1]).replace("\"\n", "\" \"9.9.9.9, 198.51.100.7\"\n"),
            "--key forwarded_for",
        ),
    ] {
        let refused = deny_list(&log, &["--rule", "gcra 1/m burst=1"]);
        assert_eq!(
            (refused.code, &refused.out[..]),
            (Some(2), ""),
            "{sign}: {refused:?}"
        );
        assert!(
            refused.err.contains(sign) && refused.err.contains("--direct"),
            "{refused:?}"
        );
        assert!(refused.err.contains("--key "), "{refused:?}");
    }
    let direct = deny_list(
        &edges(&public, &agents),
        &["--direct", "--rule", "gcra 1/m burst=1"],
    );
    assert!(
        direct.out.contains("8 user agents: one address for many"),
        "{direct:?}"
    );
    // Visitors whose addresses the last list of X-Forwarded-For has.
    let listed = edges(&public, &agents[..1]).replace("\"\n", "\" \"198.51.100.7\"\n");
    let listed = deny_list(&listed, &["--key", "forwarded_for"]);
    assert!(listed.out.contains("deny 198.51.100.7; # "), "{listed:?}");
    assert!(!deny_list(&visitors(), &[]).out.contains("deny"));
}

#[test]
fn crawlers_of_a_list_are_marked() {
    let crawler = line(
        "203.0.113.9",
        40_000,
        "Mozilla/5.0 (compatible; Googlebot/2.1)",
    )
    .repeat(150);
    let listed = deny_list(&(visitors() + &crawler), &[]);
    assert!(
        listed.out.contains(
            "\ndeny 203.0.113.9; # 90 of 150 requests denied (60.0 %) by fixed-window 60/1m; \
            `Mozilla/5.0 (compatible; Googlebot/2.1)`: a crawler, unverified"
        ),
        "{listed:?}"
    );
    let named = r#"{"ts":1431857103,"client_ip":"203.0.113.9","user_agent":"Googlebot/2.1","remote_host":"crawl.googlebot.com"}"#;
    let listed = deny_list(&format!("{named}\n").repeat(150), &["--direct"]);
    assert!(
        listed.out.contains("\n# deny 203.0.113.9; # 90 of 150 "),
        "{listed:?}"
    );
    assert!(
        listed
            .out
            .contains("a crawler, which its host name confirms"),
        "{listed:?}"
    );
    let arguments = [
        "replay",
        "--rule",
        "fixed-window 60/1m",
        "--output",
        "nginx-deny",
    ];
    let fed = earrrl_fed(&arguments, (visitors() + &crawler).as_bytes());
    assert!(fed.out.contains("by fixed-window 60/1m\n"), "{fed:?}");
    assert!(
        fed.err.contains("standard input cannot be read twice"),
        "{fed:?}"
    );
}
