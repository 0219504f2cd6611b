//! Lists and metrics that the program writes, read by the programs that they are written for.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::TestServer;
use super::support::process::BINARY;

const RULE: &str = "[[rule]]\nname = \"api\"\nlimit = \"gcra 1/s burst=5\"\n";

#[test]
fn nginx_accepts_the_list_of_limited_clients() {
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/logs/access.log");
    let mut replay = Command::new(BINARY);
    replay
        .arg("replay")
        .arg(log)
        .args(["--rule", "gcra 1/s burst=10", "--output", "nginx-deny"]);
    let list = replay.output().unwrap().stdout;
    assert!(
        String::from_utf8_lossy(&list).contains("deny 203.0.113.99; # "),
        "{}",
        String::from_utf8_lossy(&list)
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    fs::write(folder.path().join("deny.conf"), list).unwrap();
    let server = format!("server {{ listen 127.0.0.1:8; include {path}/deny.conf; }}");
    let config = format!(
        "pid {path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n  access_log off;\n  {server}\n}}\n"
    );
    fs::write(folder.path().join("nginx.conf"), config).unwrap();
    let mut nginx = super::program("/usr/sbin/nginx");
    let checked = nginx
        .args(["-t", "-c"])
        .arg(folder.path().join("nginx.conf"))
        .output()
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn promtool_accepts_the_metrics() {
    let server = TestServer::with_descriptors(RULE);
    server.resp().line("NOTHING");
    server.http().get("/nowhere");
    let text = server.http().get("/metrics").body;
    let mut promtool = super::program("/usr/bin/promtool");
    let mut promtool = promtool
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    assert!(promtool.wait().unwrap().success(), "{text}");
}
