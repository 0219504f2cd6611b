//! Tests the golden exchanges of `testdata/wire/`: the bytes that are sent and those that come
//! back. The clock stands still except for lines such as `@ +2s`.
//!
//! `EARRRL_BLESS=1` writes the received bytes into the files.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support;
use crate::support::TestServer;
use earrrl::ManualClock;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn exchanges() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root().join("testdata/wire")).unwrap();
    let files = folder.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|e| e == "wire"))
        .collect();
    files.sort();
    assert!(files.len() > 5);
    files
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match (byte, byte == b'\\') {
            (byte, false) => byte,
            _ => match rest.next().unwrap() {
                b'r' => b'\r',
                b'n' => b'\n',
                b't' => b'\t',
                b'x' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => other,
            },
        });
    }
    bytes
}

/// Escapes bytes as text, whose lines end where those of the bytes end.
fn escape(bytes: &[u8]) -> String {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let escaped = lines.map(|line| {
        line.escape_ascii()
            .to_string()
            .replace("\\\"", "\"")
            .replace("\\'", "'")
    });
    escaped.map(|line| format!("< {line}\n")).collect()
}

/// A connection whose answers are read completely: the last request is followed by one with a known
/// answer.
struct Wire<'a> {
    stream: TcpStream,
    clock: &'a ManualClock,
    http: bool,
}

impl Wire<'_> {
    /// Sends bytes; returns the server's answer, and a note if it closed the connection.
    fn exchange(&mut self, sent: &[u8]) -> Vec<u8> {
        self.stream.write_all(sent).unwrap();
        let marker = if self.http {
            &b"GET /marker HTTP/1.1\r\nHost: x\r\n\r\n"[..]
        } else {
            b"ECHO marker\r\n"
        };
        let _ = self.stream.write_all(marker);
        let mut got = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let end = got
                .windows(6)
                .position(|bytes| bytes == b"marker")
                .or_else(|| {
                    let missing = b"no such route";
                    got.windows(missing.len())
                        .position(|bytes| bytes == missing && self.http)
                });
            if let Some(end) = end {
                let answer_to_marker: &[u8] = if self.http { b"HTTP/1.1 404" } else { b"$6" };
                let start = got[..end]
                    .windows(answer_to_marker.len())
                    .rposition(|b| b == answer_to_marker);
                got.truncate(start.unwrap());
                return self.without_date(&got);
            }
            match self.stream.read(&mut piece) {
                Ok(0) => {
                    got.extend_from_slice(b"(closed)\n");
                    return self.without_date(&got);
                }
                Ok(read) => got.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    panic!(
                        "reset instead of closed, after {:?}",
                        got.escape_ascii().to_string()
                    )
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn without_date(&self, got: &[u8]) -> Vec<u8> {
        let lines = got.split_inclusive(|byte| *byte == b'\n');
        lines
            .filter(|line| !line.starts_with(b"date: "))
            .flatten()
            .copied()
            .collect()
    }
}

/// Plays an exchange, and returns the content of its file with the received bytes.
fn play(path: &Path) -> String {
    let config = std::fs::read_to_string(root().join("testdata/wire/limits.toml")).unwrap();
    let (server, clock) = TestServer::manual(&config);
    let http = path
        .file_stem()
        .unwrap()
        .to_str()
        .unwrap()
        .starts_with("http");
    let connect = || support::connect(if http { server.http } else { server.resp });
    let mut wire = Wire {
        stream: connect(),
        clock: &clock,
        http,
    };
    let mut played = String::new();
    let mut sending = Vec::new();
    let text = std::fs::read_to_string(path).unwrap();
    for line in text.lines().chain(["# end"]) {
        if !line.starts_with('>') && !sending.is_empty() {
            played += &escape(&wire.exchange(&sending));
            sending.clear();
        }
        match line.split_at_checked(2) {
            Some(("> ", bytes)) => sending.extend(unescape(bytes)),
            Some(("< ", _)) => continue,
            Some(("@ ", "reconnect")) => wire.stream = connect(),
            Some(("@ ", step)) => {
                let step = earrrl::internal::parse_duration(step.trim_start_matches('+')).unwrap();
                wire.clock
                    .advance(Duration::from_nanos(step.as_nanos() as u64));
            }
            _ => {}
        }
        played += line;
        played.push('\n');
    }
    played.strip_suffix("# end\n").unwrap().to_owned()
}

#[test]
fn golden_exchanges_are_replayed() {
    for path in exchanges() {
        let played = play(&path);
        if std::env::var_os("EARRRL_BLESS").is_some() {
            std::fs::write(&path, &played).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert_eq!(played, expected, "{}", path.display());
    }
}

#[test]
fn the_documentation_shows_exchanges_as_they_are() {
    let docs = std::fs::read_to_string(root().join("docs/wire.md")).unwrap();
    let mut shown = 0;
    for block in docs.split("```").skip(1).step_by(2) {
        let Some((kind, text)) = block.split_once('\n') else {
            continue;
        };
        let Some(name) = kind.strip_prefix("wire ") else {
            continue;
        };
        let file = std::fs::read_to_string(root().join("testdata/wire").join(name)).unwrap();
        assert!(
            file.contains(text),
            "docs/wire.md shows {name} otherwise:\n{text}"
        );
        shown += 1;
    }
    assert!(shown >= 5, "{shown}");
}
