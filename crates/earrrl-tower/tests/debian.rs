//! The examples behind nginx and under h2load, which Debian's packages bring: `scripts/gate` installs
//! them and runs this.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

#[path = "../examples/behind_nginx.rs"]
#[allow(dead_code, reason = "its main")]
mod behind_nginx;
#[path = "../examples/hyper.rs"]
#[allow(dead_code, reason = "its main")]
mod hyper_example;

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().await;
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; see scripts/gate"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h2load_is_served_what_the_rule_allows() {
    let (listener, address) = listen().await;
    tokio::spawn(hyper_example::serve(listener));
    let url = format!("http://{address}/");
    let report = said("h2load", &["-n", "100", "-c", "2", "-m", "10", &url]).await;
    let statuses = report
        .lines()
        .find(|line| line.starts_with("status codes:"))
        .expect(&report);
    // 20 at once; a slow machine may earn one or another while it is asked.
    let served: u32 = statuses.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!((20..=22).contains(&served), "{statuses}");
}

/// nginx in a folder of its own.
struct Nginx {
    process: Child,
    _folder: tempfile::TempDir,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.start_kill();
    }
}

/// Starts nginx with the example's configuration, at a free port and before this application.
async fn nginx(app: SocketAddr) -> (Nginx, SocketAddr) {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = listen().await;
    let configuration = include_str!("../examples/nginx.conf")
        .replace("127.0.0.1:3000", &app.to_string())
        .replace("127.0.0.1:8000", &address.to_string());
    let file = folder.path().join("nginx.conf");
    std::fs::write(&file, configuration).unwrap();
    drop(listener);
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    let mut command = Command::new("nginx");
    let command = command
        .env("PATH", path)
        .arg("-p")
        .arg(folder.path())
        .arg("-c")
        .arg(&file);
    let command = command
        .args(["-g", "daemon off; master_process off;"])
        .stderr(Stdio::null());
    let process = command
        .kill_on_drop(true)
        .spawn()
        .expect("nginx; see scripts/gate");
    for _ in 0..600 {
        if TcpStream::connect(address).await.is_ok() {
            return (
                Nginx {
                    process,
                    _folder: folder,
                },
                address,
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("nginx does not listen at {address}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axum_behind_nginx_believes_nginx_only() {
    let (listener, app) = listen().await;
    let service = behind_nginx::app().unwrap();
    let service = service.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    let (_nginx, address) = nginx(app).await;
    let url = format!("http://{address}/");
    let mut served = 0;
    for forged in 0..20 {
        let header = format!("X-Forwarded-For: 203.0.113.{forged}");
        // nginx itself is 127.0.0.1; its client is another.
        let from = ["--interface", "127.0.0.2", "-sS", "-i", "-H", &header, &url];
        served += u32::from(said("curl", &from).await.starts_with("HTTP/1.1 200"));
    }
    // Five at once; one more for every ten seconds that twenty calls of curl take.
    assert!((5..=8).contains(&served), "{served}");
}
