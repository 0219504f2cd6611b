//! Runs the applications of `docs/clients.md` with a server that answers, one that is killed, and one that hangs.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process_group};

use super::program;
use super::support::http::Client;
use super::support::ports::free_address;
use super::support::process::Process;
use super::support::until;

/// The timeouts of the page, and such as a busy machine needs.
const TIMEOUTS: [(&str, &str); 4] = [
    ("100 * time", "60000 * time"),
    ("ofMillis(100)", "ofMillis(60000)"),
    ("_timeout = 0.1", "_timeout = 60"),
    ("0.1, null, 0, 0.1", "60, null, 0, 60"),
];

/// An application, which is killed when this value is dropped.
struct Application {
    process: Child,
    address: SocketAddr,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Application {
    /// Starts the application in a language by a command that names its file, and its port as `PORT`.
    fn start(language: &str, command: &str, change: impl Fn(String) -> String) -> Self {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/clients.md");
        let page = fs::read_to_string(page).unwrap();
        let (_, source) = page.split_once(&format!("```{language}\n")).unwrap();
        let (source, _) = source.split_once("```").unwrap();
        assert!(source.lines().count() <= 40, "{language}");
        let folder = tempfile::tempdir().unwrap();
        let address = free_address();
        let port = address.port().to_string();
        let words: Vec<&str> = command.split(' ').collect();
        let source = change(source.replace("3000", &port));
        fs::write(folder.path().join(words[words.len() - 1]), source).unwrap();
        let log = folder.path().join("log");
        let mut command = program(words[0]);
        command
            .args(words[1..].iter().map(|word| word.replace("PORT", &port)))
            .current_dir(folder.path())
            .env("GOCACHE", folder.path().join("go"))
            .stdout(File::create(&log).unwrap())
            .stderr(File::create(&log).unwrap());
        // `go run` starts the application as a process of its own, which is in the same group.
        let process = command.process_group(0).spawn().unwrap();
        let mut application = Self {
            process,
            address,
            log,
            _folder: folder,
        };
        until("the application serves", || {
            let ended = application.process.try_wait().unwrap();
            assert_eq!(ended, None, "{}", application.logged());
            TcpStream::connect(address).is_ok()
        });
        application
    }

    /// Sends a request, and returns the status with the values of two headers.
    fn ask(&self) -> (u16, Option<String>, Option<String>) {
        let answer = Client::connect(self.address).get("/");
        let [limit, wait] =
            ["ratelimit", "retry-after"].map(|name| answer.header(name).map(str::to_owned));
        (answer.status, limit, wait)
    }

    fn logged(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}

/// Checks that a client is denied with the headers of the server, over one connection, and that all
/// pass while there is no answer.
fn limits_and_fails_open(language: &str, command: &str) {
    let server = Process::start(&["--rule", "default=gcra 1/h burst=3"]);
    let at = |http: SocketAddr, resp: SocketAddr| {
        move |source: String| {
            source
                .replace("8080", &http.port().to_string())
                .replace("6380", &resp.port().to_string())
        }
    };
    let here = at(server.http, server.resp);
    let patient = |source| {
        let patient = |source: String, (short, long): (&str, &str)| source.replace(short, long);
        TIMEOUTS.into_iter().fold(here(source), patient)
    };
    let application = Application::start(language, command, patient);
    for remaining in ["r=2", "r=1", "r=0"] {
        let (status, limit, wait) = application.ask();
        let shown = limit
            .as_ref()
            .is_some_and(|limit| limit.contains(remaining));
        let logged = application.logged();
        assert!(
            status < 300 && shown && wait.is_none(),
            "{limit:?} {logged}"
        );
    }
    let (status, limit, wait) = application.ask();
    assert_eq!((status, wait.as_deref()), (429, Some("3600")));
    assert!(limit.is_some());
    // One connection is the application's, the other asks for the metrics.
    let metrics = Client::connect(server.http).get("/metrics").body;
    let accepted = "\nearrrl_connections_accepted_total 2\n";
    assert!(metrics.contains(accepted), "{metrics}");
    drop(server);
    assert!(application.ask().0 < 300, "{}", application.logged());

    // The kernel accepts connections to it, and nobody reads them.
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let hung = (hung.local_addr().unwrap(), hung);
    let application = Application::start(language, command, at(hung.0, hung.0));
    assert!(application.ask().0 < 300, "{}", application.logged());
}

#[test]
fn the_application_in_java() {
    limits_and_fails_open("java", "/usr/bin/java Main.java");
}

#[test]
fn the_application_in_go() {
    limits_and_fails_open("go", "/usr/bin/go run main.go");
}

#[test]
fn the_application_in_ruby() {
    let command = "/usr/bin/rackup -q -s webrick -o 127.0.0.1 -p PORT config.ru";
    limits_and_fails_open("ruby", command);
}

#[test]
fn the_application_in_php() {
    limits_and_fails_open("php", "/usr/bin/php -S 127.0.0.1:PORT page.php");
}
