//! Servers on a full file system, and on one that is mounted read-only. Mounting needs root, or a kernel that lets
//! users mount in a namespace of their own.

use std::path::PathBuf;
use std::process::Command;

use super::support::http::Client;
use super::support::process::{BINARY, Process};

const RULE: &str = "login=fixed-window 5/3650d";

/// An empty directory to mount on. What is mounted there is gone with the namespace.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place =
            std::env::temp_dir().join(format!("earrrl-mounts-{name}-{}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        Self(place)
    }

    /// Returns a command that runs a shell script in a namespace of its own. `serve` in the script starts a server;
    /// `$1` is the place.
    fn script(&self, text: &str) -> Command {
        let mut unshare = Command::new("unshare");
        unshare.arg(if rustix::process::geteuid().is_root() {
            "-m"
        } else {
            "-Urm"
        });
        unshare.args(["sh", "-euc"]);
        let serve =
            r#"serve() { exec "$earrrl" serve --state "$place/limits" --rule "$rule" "$@"; }"#;
        unshare
            .arg(format!("{serve}\nplace=$1; shift\n{text}"))
            .arg("sh")
            .arg(&self.0);
        unshare.env("earrrl", BINARY).env("rule", RULE);
        unshare
    }

    /// Runs a script that starts a server which must not start. Returns what it wrote.
    fn refusal(&self, text: &str) -> String {
        let output = self
            .script(text)
            .args(["--http", "127.0.0.1:0", "--resp", "off"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && !text.contains("panicked"),
            "{text}"
        );
        text
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn admitted(server: &Process, key: &str) -> usize {
    let mut client = Client::connect(server.http);
    let request = format!(r#"{{"rule":"login","key":"{key}"}}"#);
    let mut check = || client.post("/v1/check", &request).json()["allowed"] == true;
    (0..9).filter(|_| check()).count()
}

#[test]
fn a_full_disk_is_an_error_at_the_start() {
    let place = Place::new("small");
    let mount = "mount -t tmpfs -o size=64k,mode=0700 tmpfs \"$place\"";
    let text = place.refusal(&format!("{mount}\nserve --capacity 100000 \"$@\""));
    assert!(
        text.contains(".earrrl: allocate: ") && text.contains("No space left"),
        "{text}"
    );
    let list =
        format!("{mount}\n(serve --capacity 100000 \"$@\") || ls -A \"$place/limits\" >&2; exit 1");
    let left = place.refusal(&list);
    assert!(
        left.contains("\n_engine.") && !left.lines().any(|line| line.starts_with("login.")),
        "{left}"
    );
}

/// All blocks of the file were allocated when it was created.
#[test]
fn a_disk_that_is_full_later_stops_no_decision() {
    let place = Place::new("filled");
    let fill = "head -c 1M /dev/zero > \"$place/rest\" 2>/dev/null && exit 3";
    let mount = "mount -t tmpfs -o size=128k,mode=0700 tmpfs \"$place\"";
    let serve =
        "\"$earrrl\" serve --state \"$place/limits\" --rule \"$rule\" --capacity 1000 \"$@\"";
    let wait = "until ls \"$place/limits\" 2>/dev/null | grep -q ^login; do sleep 0.01; done";
    let script = format!("{mount}\n{{ {wait}; {fill}; }} &\nexec {serve}");
    let server = Process::spawn(&mut place.script(&script));
    for client in 0..500 {
        assert_eq!(admitted(&server, &client.to_string()), 5);
    }
}

#[test]
fn a_file_system_that_is_mounted_read_only_is_an_error() {
    let place = Place::new("read-only");
    let mount = "mount -t tmpfs -o mode=0700 tmpfs \"$place\"\nread_only() { mount -o remount,ro \"$place\"; }";
    let text = place.refusal(&format!("{mount}\nread_only\nserve \"$@\""));
    assert!(
        text.contains("create the directory: ") && text.contains("Read-only file system"),
        "{text}"
    );
    let used = "\"$earrrl\" serve --state \"$place/limits\" --rule \"$rule\" \"$@\" &\nserver=$!";
    let wait = "until ls \"$place/limits\" | grep -q ^login; do sleep 0.01; done\nkill -9 $server\nwait $server || true";
    let text = place.refusal(&format!("{mount}\n{used}\n{wait}\nread_only\nserve \"$@\""));
    assert!(
        text.contains(".earrrl: open: ") && text.contains("Read-only file system"),
        "{text}"
    );
}
