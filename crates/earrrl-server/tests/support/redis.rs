//! A Valkey server of the tests' own, on a free port.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::resp::Client;

/// Stopped when this is dropped.
pub struct Redis {
    pub address: SocketAddr,
    process: Child,
}

impl Redis {
    pub fn start() -> Self {
        let address = free_address();
        let mut redis = Self { address, process: launch(address) };
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

    /// Waits for it. Another process may have had the port for a moment: then it is begun again.
    fn answers(&mut self) {
        super::until("the server answers", || {
            if self.process.try_wait().unwrap().is_some() {
                self.process = launch(self.address);
            }
            pong(self.address).is_ok_and(|answer| &answer == b"+PONG\r\n")
        });
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn pong(address: SocketAddr) -> io::Result<[u8; 7]> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    Ok(answer)
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
