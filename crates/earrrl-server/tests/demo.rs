//! Tests of `earrrl demo`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::command::earrrl;
use crate::support::http::Client;
use crate::support::process::BINARY;

#[test]
fn it_ends_by_itself_and_prints_what_each_client_got() {
    let outcome = earrrl(&["demo", "--for", "1s"]);
    assert_eq!((outcome.code, &*outcome.err), (Some(0), ""));
    for client in ["abuser", "honest"] {
        let line =
            |line: &str| line.contains(&format!("  {client}  ")) && line.ends_with("allowed");
        assert!(outcome.out.lines().any(line), "{}", outcome.out);
        let total = outcome
            .out
            .lines()
            .find(|line| line.starts_with(client))
            .unwrap();
        let counts: Vec<u64> = total
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        assert!(
            counts.len() == 2 && counts[0] > 0 && counts[0] == counts[1],
            "{total}"
        );
    }
}

#[test]
fn a_reader_is_the_third_client_and_an_interrupt_ends_it() {
    let mut demo = Command::new(BINARY)
        .arg("demo")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(demo.stdout.take().unwrap());
    let mut line = String::new();
    while !line.trim().starts_with("curl ") {
        line.clear();
        assert!(
            output.read_line(&mut line).unwrap() > 0,
            "no line with curl"
        );
    }
    let url = line.split_whitespace().last().unwrap();
    let address = url
        .strip_prefix("http://")
        .unwrap()
        .strip_suffix("/v1/check")
        .unwrap();
    let body = line.split('\'').nth(3).unwrap();
    let mut client = Client::connect(address.parse().unwrap());
    assert_eq!(client.post("/v1/check", body).json()["allowed"], true);
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\nabuser: "), "{rest}");
    assert!(demo.wait().unwrap().success());
}
