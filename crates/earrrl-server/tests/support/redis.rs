//! A Valkey server of the tests' own, on a free port.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::ports::free_address;
use super::resp::{Client, Reply};

/// A Valkey server, which is stopped when this value is dropped.
pub struct Redis {
    pub address: SocketAddr,
    options: Vec<String>,
    process: Child,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Self {
        let address = free_address();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let process = launch(address, &options);
        let mut redis = Self {
            address,
            options,
            process,
        };
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

    /// Starts a replica, and waits until it has all data of this server.
    pub fn replica(&self) -> Self {
        let master = format!("{} {}", self.address.ip(), self.address.port());
        let replica = Self::start_with(&[
            "--replicaof",
            &master,
            "--repl-diskless-load",
            "on-empty-db",
        ]);
        super::until("the replica is in step", || {
            let Reply::Bulk(info) = replica.client().line("INFO replication") else {
                return false;
            };
            String::from_utf8(info)
                .unwrap()
                .contains("master_link_status:up")
        });
        replica
    }

    pub fn restart(&mut self) {
        self.kill();
        self.process = launch(self.address, &self.options);
        self.answers();
    }

    /// Waits until the server answers, and starts it again if another process had its port at that
    /// moment.
    fn answers(&mut self) {
        super::until("the server answers", || {
            if self.process.try_wait().unwrap().is_some() {
                self.process = launch(self.address, &self.options);
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

/// A Sentinel that decides alone; it watches the master `main`, which has one replica.
pub struct Sentinel {
    pub address: SocketAddr,
    process: Child,
    file: PathBuf,
}

impl Sentinel {
    pub fn start(master: &Redis) -> Self {
        let address = free_address();
        let file = std::env::temp_dir().join(format!("earrrl-sentinel-{}.conf", address.port()));
        let text = format!(
            "port {}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 2000\n",
            address.port(),
            master.address.port()
        );
        std::fs::write(&file, text).unwrap();
        let mut command = super::tools::redis_server();
        let process = command
            .arg(&file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let sentinel = Self {
            address,
            process,
            file,
        };
        super::until("the Sentinel knows the replica", || {
            pong(address).is_ok() && sentinel.master("num-slaves") == "1"
        });
        sentinel
    }

    /// Returns a field of the Sentinel's report on the master.
    pub fn master(&self, field: &str) -> String {
        let fields = Client::connect(self.address)
            .line("SENTINEL MASTER main")
            .pairs();
        match fields.into_iter().find(|(name, _)| name == field) {
            Some((_, Reply::Bulk(text))) => String::from_utf8(text).unwrap(),
            other => panic!("{field}: {other:?}"),
        }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        std::fs::remove_file(&self.file).ok();
    }
}

fn launch(address: SocketAddr, options: &[String]) -> Child {
    let port = address.port().to_string();
    super::tools::redis_server()
        .current_dir(std::env::temp_dir())
        .args([
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--loglevel",
            "warning",
        ])
        .args(options)
        .stdout(Stdio::null())
        .spawn()
        .expect("the server starts")
}
