//! A Valkey server of the tests' own, on a free port.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::resp::{Client, Reply};

/// Stopped when this is dropped.
pub struct Redis {
    pub address: SocketAddr,
    process: Child,
}

impl Redis {
    pub fn start() -> Self {
        let address = free_address();
        let redis = Self { address, process: launch(address) };
        redis.answers();
        redis
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    pub fn restart(&mut self) {
        self.kill();
        self.process = launch(self.address);
        self.answers();
    }

    fn answers(&self) {
        super::until("the server answers", || {
            TcpStream::connect(self.address).is_ok()
                && self.client().line("PING") == Reply::Simple("PONG".into())
        });
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn launch(address: SocketAddr) -> Child {
    let port = address.port().to_string();
    super::tools::redis_server()
        .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--loglevel", "warning"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the server starts")
}

pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
