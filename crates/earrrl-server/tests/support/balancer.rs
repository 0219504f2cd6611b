//! A real load balancer with a recipe of `contrib/`, which passes TCP on to a server and names its
//! clients by the PROXY protocol.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use super::http::Client;
use super::ports::free_address;
use super::proxy::client;
use super::{TestServer, until};

/// A load balancer in a folder of its own, which is killed when this value is dropped.
pub struct Balancer {
    process: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Balancer {
    /// Runs a command in a folder with a copy of this file of `contrib/`, which has free ports and
    /// a change.
    pub fn start(
        recipe: &str,
        server: &TestServer,
        command: &mut Command,
        change: impl Fn(&str) -> String,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = free_address();
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../contrib")
            .join(recipe);
        let text = fs::read_to_string(&source).unwrap();
        let places = [(8080, server.http), (8000, address)];
        let text = places
            .into_iter()
            .fold(change(&text), |text, (known, address)| {
                let port = address.port();
                text.replace(&format!("127.0.0.1:{known}"), &address.to_string())
                    .replace(
                        &format!("port_value: {known}"),
                        &format!("port_value: {port}"),
                    )
            });
        fs::write(folder.path().join(source.file_name().unwrap()), text).unwrap();
        command
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // A process group lets the load balancer's workers be killed with it.
        let process = command.process_group(0).spawn().unwrap();
        let mut balancer = Self {
            process,
            address,
            _folder: folder,
        };
        until("the load balancer listens", || {
            assert_eq!(balancer.process.try_wait().unwrap(), None, "{recipe}");
            TcpStream::connect(address).is_ok()
        });
        balancer
    }

    /// Returns a client with the address 127.0.0.N.
    fn client(&self, number: u8) -> Client {
        client(self.address, number)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}

/// Starts a server that expects the PROXY protocol from 127.0.0.1, and allows each client one
/// request.
pub fn balanced_server(more: &str) -> TestServer {
    TestServer::start(&format!(
        "[server]\nproxy_protocol = [\"http\", \"resp\", \"grpc\"]\n{more}\n\
         [client_address]\ntrusted_proxies = [\"127.0.0.1/32\"]\n\
         [[rule]]\nname = \"once\"\nlimit = \"gcra 0.001/s burst=1\"\nkey = \"client\"\n"
    ))
}

/// Returns how many connections had this result of reading their heads.
pub fn heads(server: &TestServer, result: &str) -> u64 {
    let name = format!("earrrl_proxy_heads_total{{result=\"{result}\"}} ");
    let metrics = String::from_utf8(server.server.metrics()).unwrap();
    let count = metrics.lines().find_map(|line| line.strip_prefix(&name));
    count.map_or(0, |count| count.parse().unwrap())
}

/// Checks that each client of the load balancer has a limit of its own, which it cannot evade by a
/// header of proxies.
pub fn each_client_is_limited(balancer: &Balancer, server: &TestServer) {
    for number in [2, 3] {
        for expected in [200, 429, 429] {
            let forged = "X-Forwarded-For: 203.0.113.1\r\nForwarded: for=203.0.113.1\r\n";
            let answer = balancer
                .client(number)
                .request("GET", "/v1/authz", forged, b"");
            assert_eq!(answer.status, expected, "127.0.0.{number}: {answer:?}");
        }
    }
    assert_eq!((heads(server, "invalid"), heads(server, "late")), (0, 0));
}
