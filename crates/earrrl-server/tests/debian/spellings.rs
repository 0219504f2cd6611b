//! Sends the spellings of a path to real applications: each that reaches the handler must be
//! counted.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::program;
use super::support::ports::free_address;
use super::support::process::Process;
use super::support::spellings::{self, PATH, Spelling};
use super::support::{connect, installed, until};

/// The answer of the handler.
const REACHED: &str = "REACHED";

/// An application with one handler, which is killed when this value is dropped.
struct Application {
    process: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Application {
    /// Runs a command in its own folder.
    fn start(command: &mut Command, address: SocketAddr, folder: tempfile::TempDir) -> Self {
        let log = folder.path().join("log");
        let output = File::create(&log).unwrap();
        command
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .stdout(Stdio::null());
        let process = command.stderr(output).spawn().unwrap();
        let mut application = Self {
            process,
            address,
            _folder: folder,
        };
        until("the application serves", || {
            let ended = application.process.try_wait().unwrap();
            assert_eq!(ended, None, "{}", fs::read_to_string(&log).unwrap());
            TcpStream::connect(address).is_ok() && application.is_reached(PATH.as_bytes())
        });
        application
    }

    /// Returns true if a request for this target reaches the handler.
    fn is_reached(&self, target: &[u8]) -> bool {
        let mut stream = connect(self.address);
        let rest = b" HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
        stream.write_all(&[b"GET ", target, rest].concat()).unwrap();
        let mut answer = Vec::new();
        // A rejected request may be answered by a connection reset.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).contains(REACHED)
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/applications")
        .join(name)
}

fn express() -> Application {
    let address = free_address();
    let mut command = Command::new("node");
    let modules = installed("node_modules");
    command
        .arg(source("express.cjs"))
        .arg(address.port().to_string())
        .env("NODE_PATH", modules);
    Application::start(&mut command, address, tempfile::tempdir().unwrap())
}

/// Starts a Python application under gunicorn, without a second process that could outlive the
/// first.
fn gunicorn(module: &str) -> Application {
    let address = free_address();
    let mut command = Command::new("python3");
    let paths = [installed("applications"), source("")].map(|path| path.display().to_string());
    command
        .env("PYTHONPATH", paths.join(":"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command.args(["-m", "gunicorn", "--no-control-socket", "--workers", "1"]);
    command.args(["--bind", &address.to_string(), module]);
    Application::start(&mut command, address, tempfile::tempdir().unwrap())
}

fn tomcat() -> Application {
    let address = free_address();
    let folder = tempfile::tempdir().unwrap();
    let mut command = program("/usr/bin/java");
    command.args(["-cp", "/usr/share/java/tomcat10-embed-core.jar"]);
    command
        .arg(source("Application.java"))
        .arg(address.port().to_string())
        .arg(folder.path());
    Application::start(&mut command, address, folder)
}

/// Starts nginx as the application, or as a proxy that passes decoded paths to the server `behind`.
fn nginx(behind: SocketAddr, serves_files: bool) -> Application {
    let files = free_address();
    let before = free_address();
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(source("nginx.conf")).unwrap();
    let port = |address: SocketAddr| address.port().to_string();
    let text = text.replace(":FILES", &format!(":{}", port(files)));
    let text = text.replace(":BEFORE", &format!(":{}", port(before)));
    fs::write(
        folder.path().join("nginx.conf"),
        text.replace("BEHIND", &port(behind)),
    )
    .unwrap();
    fs::create_dir_all(folder.path().join("files/v1")).unwrap();
    fs::write(folder.path().join("files/v1/login"), REACHED).unwrap();
    let mut command = program("/usr/sbin/nginx");
    command.args([
        "-p",
        ".",
        "-c",
        "nginx.conf",
        "-g",
        "daemon off; master_process off;",
    ]);
    Application::start(
        &mut command,
        if serves_files { files } else { before },
        folder,
    )
}

/// Returns true if a rule for the path counts the request that a proxy describes by this target.
fn is_counted(limiter: SocketAddr, target: &[u8]) -> bool {
    let mut stream = connect(limiter);
    let head =
        b"GET /v1/authz HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nX-Forwarded-Uri: ";
    stream
        .write_all(&[head, target, b"\r\n\r\n"].concat())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    answer.contains("\r\nratelimit: \"login\";")
}

/// Sends every spelling to an application and to earrrl.
fn none_is_uncounted(name: &str, application: &Application) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("limits.toml");
    let rule = "[[rule]]\nname = \"login\"\nlimit = \"gcra 1000000/s burst=1000000\"\n";
    fs::write(&config, format!("{rule}match = {{ path = \"{PATH}\" }}\n")).unwrap();
    let limiter = Process::start(&["--config", config.to_str().unwrap()]);
    let all = spellings::all();
    assert!(all.len() >= 123, "{}", all.len());
    let taken = |spelling: &&Spelling| application.is_reached(&spelling.target);
    let (taken, other): (Vec<_>, Vec<_>) = all.iter().partition(taken);
    let shown = |spellings: &[&Spelling]| {
        spellings
            .iter()
            .map(|spelling| spelling.shown.clone())
            .collect::<Vec<_>>()
    };
    let uncounted: Vec<_> = taken
        .iter()
        .copied()
        .filter(|one| !is_counted(limiter.http, &one.target))
        .collect();
    assert_eq!(shown(&uncounted), [""; 0], "{name} serves these uncounted");
    let is_listed = |spelling: &&Spelling| spelling.takers.iter().any(|taker| taker == name);
    let unlisted: Vec<_> = taken
        .iter()
        .copied()
        .filter(|one| !is_listed(one))
        .collect();
    assert_eq!(
        shown(&unlisted),
        [""; 0],
        "{name} takes these, which spellings.txt lacks"
    );
    let wrong: Vec<_> = other.iter().copied().filter(is_listed).collect();
    assert_eq!(
        shown(&wrong),
        [""; 0],
        "{name} takes none of these, which spellings.txt has"
    );
}

#[test]
fn of_express() {
    none_is_uncounted("express", &express());
}

#[test]
fn of_flask_behind_gunicorn() {
    none_is_uncounted("flask", &gunicorn("flask_app:app"));
}

#[test]
fn of_django_behind_gunicorn() {
    none_is_uncounted("django", &gunicorn("django_app:app"));
}

#[test]
fn of_tomcat() {
    none_is_uncounted("tomcat", &tomcat());
}

#[test]
fn of_files_of_nginx() {
    let behind = express();
    none_is_uncounted("nginx", &nginx(behind.address, true));
}

#[test]
fn of_nginx_that_decodes_for_express() {
    let behind = express();
    none_is_uncounted("decoding", &nginx(behind.address, false));
}
