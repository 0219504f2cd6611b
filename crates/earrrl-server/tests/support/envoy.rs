//! A real Envoy in front of a server.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use super::http::Client;
use super::{installed, testdata, until};

/// An Envoy that runs `testdata/envoy/proxy.yaml` in front of a server; it is killed when this
/// value is dropped.
pub struct Envoy {
    child: Child,
    pub proxy: SocketAddr,
    _config: tempfile::TempDir,
}

impl Envoy {
    pub fn start(grpc: SocketAddr) -> Self {
        Self::start_with(grpc, str::to_owned)
    }

    /// Starts Envoy after applying `change` to its configuration.
    pub fn start_with(grpc: SocketAddr, change: impl Fn(&str) -> String) -> Self {
        // Both ports are held at the same time, so that they differ.
        let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [proxy, app] = [0, 1].map(|place: usize| held[place].local_addr().unwrap());
        drop(held);
        let text = change(&std::fs::read_to_string(testdata("envoy/proxy.yaml")).unwrap());
        let port = |address: SocketAddr| address.port().to_string();
        let text = text.replace("port_value: GRPC", &format!("port_value: {}", port(grpc)));
        let text = text.replace("port_value: APP", &format!("port_value: {}", port(app)));
        let text = text.replace("port_value: PROXY", &format!("port_value: {}", port(proxy)));
        let config = tempfile::tempdir().unwrap();
        let file = config.path().join("envoy.yaml");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(installed("bin/envoy"));
        command.args([
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
            "--log-level",
            "warn",
            "-c",
        ]);
        let child = command.arg(&file).stderr(Stdio::piped()).spawn().unwrap();
        let mut envoy = Self {
            child,
            proxy,
            _config: config,
        };
        until("Envoy listens", || {
            if envoy.child.try_wait().unwrap().is_some() {
                let mut log = String::new();
                envoy
                    .child
                    .stderr
                    .take()
                    .unwrap()
                    .read_to_string(&mut log)
                    .unwrap();
                panic!("Envoy ended: {log}");
            }
            std::net::TcpStream::connect(proxy).is_ok()
        });
        envoy
    }

    pub fn client(&self) -> Client {
        Client::connect(self.proxy)
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
