//! Runs the binary.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part, and may panic"
)]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const EARRRL: &str = env!("CARGO_BIN_EXE_earrrl");

/// The result of running the binary.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit status; `None` if a signal ended the process.
    pub(crate) code: Option<i32>,
    /// The standard output.
    pub(crate) out: String,
    /// The standard error output.
    pub(crate) err: String,
}

/// Returns the folder of sample logs.
pub(crate) fn logs() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/logs"))
}

/// Runs `earrrl` without input.
pub(crate) fn earrrl(arguments: &[&str]) -> Outcome {
    earrrl_fed(arguments, b"")
}

/// Runs `earrrl` with `input` on its standard input.
pub(crate) fn earrrl_fed(arguments: &[&str], input: &[u8]) -> Outcome {
    run(Command::new(EARRRL).args(arguments), input)
}

/// Runs `earrrl` with an address space of `kilobytes` KiB.
pub(crate) fn within_memory(kilobytes: u32, arguments: &[&str]) -> Outcome {
    let script = format!("ulimit -v {kilobytes} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command
        .env("RUST_BACKTRACE", "0")
        .args(["-c", &script, EARRRL])
        .args(arguments);
    run(&mut command, b"")
}

/// Runs `earrrl` with an output pipe that is never read.
pub(crate) fn earrrl_unread(arguments: &[&str]) -> Outcome {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = Command::new(EARRRL)
        .args(arguments)
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn();
    finish(child.unwrap())
}

fn run(command: &mut Command, input: &[u8]) -> Outcome {
    let command = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Writing fails if the program ends without reading all of its input, which is allowed.
    let _ = child.stdin.take().unwrap().write_all(input);
    finish(child)
}

fn finish(child: std::process::Child) -> Outcome {
    let output = child.wait_with_output().unwrap();
    Outcome {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}
