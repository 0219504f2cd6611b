//! Tests `earrrl replay --follow` on logs that are written and rotated meanwhile: every line counts
//! once, and memory stays flat. It takes a few seconds; with `EARRRL_LONG=1` ten minutes, at 5,000
//! lines a second.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::command::earrrl;
use crate::support::process::{BINARY, resident_kib};

const RULE: [&str; 2] = ["--rule", "gcra 1/s burst=10"];
/// The number of users; memory must not grow once all are known.
const USERS: u32 = 1_000;
/// The number of lines that are written at a time.
const LINES: u32 = 500;
/// The growth in KiB that the allocator may cause.
const SLACK_KIB: u64 = 1_024;

/// A program that reads a log; it is killed when this value is dropped.
struct Reader {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// The number of lines that were reported.
    reported: u32,
}

impl Reader {
    fn start(arguments: &[&str], stdin: Stdio) -> Self {
        let mut command = Command::new(BINARY);
        command
            .args(["replay", "--key", "user", "--output", "jsonl"])
            .args(RULE)
            .args(arguments);
        command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            lines,
            reported: 0,
        }
    }

    /// Waits until the first `written` lines are reported, each once and in order.
    fn expect(&mut self, written: u32) {
        while self.reported < written {
            let line = self.lines.next().unwrap().unwrap();
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(line["key"], user(self.reported), "line {}", self.reported);
            self.reported += 1;
        }
    }

    /// Presses Ctrl-C. Returns the exit status, and the messages.
    fn interrupt(mut self) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        assert!(
            self.lines.next().is_none(),
            "a line is reported after the last"
        );
        let mut messages = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut messages)
            .unwrap();
        (self.child.wait().unwrap().code(), messages)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the user of the line with this number.
fn user(number: u32) -> String {
    format!("user-{}", number % USERS)
}

/// A log, and the number of lines that were written.
struct Log {
    path: PathBuf,
    written: u32,
}

impl Log {
    /// Appends lines to a file, which is the log or an earlier one.
    fn append(&mut self, path: &Path, lines: u32) {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        let text = (self.written..self.written + lines).map(|number| {
            let user = user(number);
            format!("192.0.2.7 - {user} [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5\n")
        });
        file.write_all(text.collect::<String>().as_bytes()).unwrap();
        self.written += lines;
    }

    fn write(&mut self) {
        let path = self.path.clone();
        self.append(&path, LINES);
    }

    /// Renames the log; the writer has a few lines for the old file, and then creates the new one.
    fn rename(&mut self) {
        let old = self.path.with_extension("1");
        fs::rename(&self.path, &old).unwrap();
        self.append(&old, 7);
        File::create(&self.path).unwrap();
        self.append(&old, 3);
        self.write();
    }

    fn truncate(&mut self) {
        File::create(&self.path).unwrap();
        self.write();
    }
}

fn log() -> (tempfile::TempDir, Log) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    (folder, Log { path, written: 0 })
}

#[test]
fn each_line_of_a_rotated_log_counts_once() {
    let (_folder, mut log) = log();
    log.write();
    let mut reader = Reader::start(&["--follow", log.path.to_str().unwrap()], Stdio::null());
    reader.expect(log.written);
    for _ in 0..2 {
        log.rename();
        reader.expect(log.written);
        log.truncate();
        reader.expect(log.written);
    }
    // A line that is not complete is not reported.
    File::options()
        .append(true)
        .open(&log.path)
        .unwrap()
        .write_all(b"192.0.2.7 - us")
        .unwrap();
    assert_eq!(reader.interrupt(), (Some(0), String::new()));
}

#[test]
fn ten_minutes_of_a_busy_log_take_no_memory() {
    let long = std::env::var_os("EARRRL_LONG").is_some();
    let (steps, rotation) = if long { (6_000, 100) } else { (60, 20) };
    let (_folder, mut log) = log();
    log.write();
    let mut reader = Reader::start(&["--follow", log.path.to_str().unwrap()], Stdio::null());
    let mut resident = Vec::new();
    let start = Instant::now();
    for step in 1..=steps {
        log.write();
        if step % rotation == 0 {
            match step / rotation % 3 {
                0 => {
                    reader.expect(log.written);
                    log.truncate();
                }
                _ => log.rename(),
            }
            resident.push(resident_kib(&reader.child));
        }
        // The reader may lag by a second.
        reader.expect(log.written.saturating_sub(10 * LINES));
        if long {
            let next = Duration::from_millis(100) * step;
            thread::sleep(next.saturating_sub(start.elapsed()));
        }
    }
    reader.expect(log.written);
    resident.push(resident_kib(&reader.child));
    println!(
        "{} lines in {:?}, KiB: {resident:?}",
        log.written,
        start.elapsed()
    );
    let early = resident[resident.len() / 10];
    assert!(
        resident[resident.len() - 1] <= early + SLACK_KIB,
        "{resident:?}"
    );
    assert_eq!(reader.interrupt(), (Some(0), String::new()));
}

#[test]
fn lines_from_a_pipe_are_reported_before_the_next_come() {
    let (output, mut input) = std::io::pipe().unwrap();
    let (_folder, mut log) = log();
    let mut reader = Reader::start(&["--assume-sorted"], output.into());
    for _ in 0..5 {
        log.truncate();
        input.write_all(&fs::read(&log.path).unwrap()).unwrap();
        reader.expect(log.written);
    }
    let (code, messages) = reader.interrupt();
    assert_eq!(code, Some(0));
    assert!(
        messages.contains("interrupted: what was read until then is reported"),
        "{messages}"
    );
}

#[test]
fn interrupting_reports_what_was_read() {
    let (_folder, mut log) = log();
    log.write();
    let (output, mut input) = std::io::pipe().unwrap();
    input.write_all(&fs::read(&log.path).unwrap()).unwrap();
    let mut command = Command::new(BINARY);
    command
        .args(["replay", "--key", "user", "--output", "json"])
        .args(RULE);
    let mut child = command
        .stdin(output)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(command);
    // The pipe's next bytes fit only after the program has read the first.
    input.write_all(&[b'\n'; 64 * 1024]).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut report = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut report)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["events"], LINES);
}

#[test]
fn one_file_can_be_followed() {
    for arguments in [&["--follow", "-"][..], &["--follow", "a", "b"]] {
        let outcome = earrrl(&[&["replay"], &RULE[..], arguments].concat());
        assert_eq!(
            (outcome.code, outcome.err.lines().count()),
            (Some(2), 1),
            "{outcome:?}"
        );
        assert!(
            outcome.err.contains("--follow reads one file"),
            "{outcome:?}"
        );
    }
    let outcome = earrrl(&["replay", "--follow", "a"]);
    assert!(
        outcome.err.contains("--follow needs a --rule"),
        "{outcome:?}"
    );
}
