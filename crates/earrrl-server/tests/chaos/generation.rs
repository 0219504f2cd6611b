//! A process of the server. Its sockets outlive it, and its log output is made to fail.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, PipeReader, pipe};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::clients::{get, metric};
use super::{Chaos, until_all_rest};
use crate::support::process::BINARY;
use crate::support::until;

/// The number of descriptors that the server may open, fewer than hostile clients need.
const DESCRIPTORS: usize = 256;

/// The destination of the server's log.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sink {
    /// A pipe that is read continuously.
    Read,
    /// A pipe that is read only from time to time.
    Unread,
    /// A pipe whose reader has closed it.
    Closed,
    /// A device without space.
    Full,
}

impl Sink {
    pub(super) const ALL: [Self; 4] = [Self::Read, Self::Unread, Self::Closed, Self::Full];
}

pub(super) struct Generation {
    child: Child,
    sink: Sink,
    reads: Arc<AtomicBool>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Generation {
    /// Starts the server with two sockets, as systemd starts a unit.
    pub(super) fn start(
        chaos: &Chaos,
        [http, resp]: [&TcpListener; 2],
        config: &Path,
        sink: Sink,
    ) -> Self {
        let script = format!(
            "ulimit -n {DESCRIPTORS}; exec 3<&0 4<&1 </dev/null >/dev/null; \
             export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=http:resp; exec \"$@\""
        );
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                &script,
                "sh",
                BINARY,
                "serve",
                "--log-json",
                "--config",
            ])
            .arg(config);
        command.stdin(OwnedFd::from(http.try_clone().unwrap()));
        command.stdout(OwnedFd::from(resp.try_clone().unwrap()));
        let reads = Arc::new(AtomicBool::new(true));
        let lines = Arc::default();
        if sink == Sink::Full {
            command.stderr(OpenOptions::new().write(true).open("/dev/full").unwrap());
        } else {
            let (reader, writer) = pipe().unwrap();
            command.stderr(Stdio::from(writer));
            if sink != Sink::Closed {
                let reads = Arc::clone(&reads);
                let lines = Arc::clone(&lines);
                thread::spawn(move || read(reader, &reads, &lines));
            }
        }
        let generation = Self {
            child: command.spawn().unwrap(),
            sink,
            reads,
            lines,
        };
        // The server handles signals only once it serves.
        get(chaos, "/healthz");
        generation
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns the resident memory of the process without the pages of its program, in bytes.
    pub(super) fn resident(&mut self) -> u64 {
        assert_eq!(
            self.child.try_wait().unwrap(),
            None,
            "it has ended: {:?}",
            self.lines.lock()
        );
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("RssAnon:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 1024
    }

    /// Fills the pipe of the log, or drains it.
    pub(super) fn fill_or_free_the_log(&self) {
        if self.sink == Sink::Unread {
            self.reads.fetch_not(Relaxed);
        }
    }

    /// Stops the server and returns the number of its decisions. If its log can be read, which
    /// states this number, it is stopped under load; otherwise while clients rest.
    pub(super) fn stop(mut self, chaos: &Chaos, clients: usize) -> u64 {
        if self.sink == Sink::Closed || self.sink == Sink::Full {
            let counted = self.stop_at_rest(chaos, clients, || {});
            chaos.rest.store(false, Relaxed);
            return counted;
        }
        self.reads.store(true, Relaxed);
        self.end();
        let stopped = || self.logged("\"stopped\"");
        until("it has said how many", || stopped().is_some());
        let line: serde_json::Value = serde_json::from_str(&stopped().unwrap()).unwrap();
        line["fields"]["decisions"].as_u64().unwrap()
    }

    /// Makes all clients rest, calls `then`, and stops the server.
    pub(super) fn stop_at_rest(mut self, chaos: &Chaos, clients: usize, then: impl Fn()) -> u64 {
        until_all_rest(chaos, clients);
        let counted = metric(chaos, "earrrl_decisions_total");
        then();
        self.end();
        counted
    }

    fn logged(&self, text: &str) -> Option<String> {
        self.lines
            .lock()
            .unwrap()
            .iter()
            .find(|line| line.contains(text))
            .cloned()
    }

    fn end(&mut self) {
        self.signal(Signal::TERM);
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{:?}", self.lines.lock());
    }
}

/// Ends the server if the test fails.
impl Drop for Generation {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(reader: PipeReader, reads: &AtomicBool, lines: &Mutex<Vec<String>>) {
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        lines.lock().unwrap().push(line);
        while !reads.load(Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
