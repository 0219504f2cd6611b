//! Runs the binary as a server.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

pub const BINARY: &str = env!("CARGO_BIN_EXE_earrrl");

/// `earrrl serve` on free ports; it is killed when this value is dropped.
pub struct Process {
    pub child: Child,
    pub http: SocketAddr,
    pub resp: SocketAddr,
    pub grpc: SocketAddr,
    pub admin: Option<SocketAddr>,
    log: BufReader<Box<dyn Read + Send>>,
}

impl Process {
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        Self::spawn(command.arg("serve").args(arguments))
    }

    pub fn spawn(command: &mut Command) -> Self {
        Self::spawn_at("127.0.0.1:0", "127.0.0.1:0", command)
    }

    /// Starts a server with HTTP and gRPC at these addresses, and other listeners on free ports.
    pub fn spawn_at(http: &str, grpc: &str, command: &mut Command) -> Self {
        let any = "127.0.0.1:0";
        let mut process =
            Self::begin(command.args(["--http", http, "--resp", any, "--grpc", grpc]));
        process.until_serving();
        process
    }

    /// Starts a server without waiting until it serves.
    pub fn begin(command: &mut Command) -> Self {
        let mut child = command
            .arg("--log-json")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr: Box<dyn Read + Send> = Box::new(child.stderr.take().unwrap());
        let none = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            child,
            http: none,
            resp: none,
            grpc: none,
            admin: None,
            log: BufReader::new(stderr),
        }
    }

    pub fn until_serving(&mut self) {
        let serving = self.until_logged("serving");
        let address = |name: &str| serving["fields"][name].as_str().unwrap().parse().unwrap();
        (self.http, self.resp) = (address("http"), address("resp"));
        // A disabled listener has no address in the log.
        let grpc = serving["fields"]["grpc"].as_str().unwrap().parse();
        self.grpc = grpc.unwrap_or(self.grpc);
        self.admin = serving["fields"]["admin"]
            .as_str()
            .and_then(|address| address.parse().ok());
    }

    /// Closes the reading end of the log's pipe.
    pub fn close_log(&mut self) {
        self.log = BufReader::new(Box::new(std::io::empty()));
    }

    /// Waits for the next log line with this message, and returns it.
    pub fn until_logged(&mut self, message: &str) -> serde_json::Value {
        loop {
            let mut line = String::new();
            assert!(
                self.log.read_line(&mut line).unwrap() > 0,
                "never logged {message:?}"
            );
            let json: serde_json::Value = serde_json::from_str(&line).unwrap();
            if json["fields"]["message"]
                .as_str()
                .is_some_and(|text| text.starts_with(message))
            {
                return json;
            }
        }
    }

    /// Waits for the next warning in the log, and returns its line.
    pub fn until_warned(&mut self) -> serde_json::Value {
        loop {
            let line = self.until_logged("");
            if line["level"] == "WARN" {
                return line;
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Suspends the process by SIGSTOP, and waits until all of its threads have stopped. The thread that
    /// receives the signal may have to wait for a processor while the others continue.
    pub fn suspend(&self) {
        self.signal(Signal::STOP);
        let stopped = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED);
        assert!(
            stopped.unwrap().is_some_and(|(_, status)| status.stopped()),
            "the process ended"
        );
    }

    pub fn resident_kib(&self) -> u64 {
        resident_kib(&self.child)
    }
}

/// Returns the memory of a process in KiB, without the pages of its program: the kernel drops those at any time.
pub fn resident_kib(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("RssAnon:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
