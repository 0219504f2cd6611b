//! The clients: processes of this test binary that can be killed at any moment.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use earrrl_testing::Random;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::journal::{Entry, Journal};
use super::{KEYS, pause};
use crate::support::until;

/// The names of the rules.
pub(super) const RULES: [&str; 3] = ["tokens", "requests", "bytes"];
const ROLE: &str = "EARRRL_LEDGER_CLIENT";
const CLIENTS: u64 = 8;

/// Returns the name of a key.
pub(super) fn key(nth: u64) -> String {
    format!("key-{nth}")
}

/// All clients, of which some are killed and replaced by others.
pub(super) struct Crowd {
    folder: TempDir,
    servers: Vec<SocketAddr>,
    rules: usize,
    running: Vec<Running>,
    ended: Vec<Journal>,
    started: u64,
}

struct Running {
    child: Child,
    journal: PathBuf,
    wanted: u64,
    progress: Progress,
}

/// Counts the reservations in a journal while it is written.
struct Progress {
    reader: BufReader<File>,
    line: Vec<u8>,
    held: u64,
}

impl Progress {
    fn held(&mut self) -> u64 {
        while self.reader.read_until(b'\n', &mut self.line).unwrap() > 0 {
            if self.line.ends_with(b"\n") {
                self.held += u64::from(self.line.ends_with(b" held\n"));
                self.line.clear();
            }
        }
        self.held
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Crowd {
    /// Starts clients that make this many reservations together.
    pub(super) fn start(servers: &[SocketAddr], rules: usize, reservations: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let servers = servers.to_vec();
        let running = Vec::new();
        let ended = Vec::new();
        let mut crowd = Self {
            folder,
            servers,
            rules,
            running,
            ended,
            started: 0,
        };
        (0..CLIENTS).for_each(|_| crowd.launch(reservations.div_ceil(CLIENTS)));
        crowd
    }

    fn launch(&mut self, wanted: u64) {
        self.started += 1;
        let journal = self.folder.path().join(self.started.to_string());
        let servers: Vec<_> = self.servers.iter().map(SocketAddr::to_string).collect();
        let seed = self.started;
        let rules = self.rules;
        let servers = servers.join(",");
        let role = format!(
            "{}\n{servers}\n{rules}\n{seed}\n{wanted}",
            journal.display()
        );
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["ledger::client::works_alone", "--exact", "--nocapture"])
            .env(ROLE, role);
        File::create_new(&journal).unwrap();
        let reader = BufReader::new(File::open(&journal).unwrap());
        let progress = Progress {
            reader,
            line: Vec::new(),
            held: 0,
        };
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        self.running.push(Running {
            child,
            journal,
            wanted,
            progress,
        });
    }

    /// Waits until the clients have made this many reservations.
    pub(super) fn until_held(&mut self, count: u64) {
        let ended: u64 = self.ended.iter().map(Journal::held).sum();
        let mut last = (ended, Instant::now());
        loop {
            let running = self.running.iter_mut().map(|client| client.progress.held());
            let held = ended + running.sum::<u64>();
            if held >= count {
                return;
            }
            if held > last.0 {
                last = (held, Instant::now());
            }
            assert!(
                last.1.elapsed() < crate::support::PATIENCE,
                "{held} of {count}"
            );
            pause();
        }
    }

    /// Kills a client, and starts another one that makes the reservations that are left.
    pub(super) fn kill_one(&mut self, nth: u64) {
        let mut victim = self.running.remove((nth % CLIENTS) as usize);
        victim.child.kill().unwrap();
        victim.child.wait().unwrap();
        let journal = Journal::read(&victim.journal);
        self.launch(victim.wanted.saturating_sub(journal.held()));
        self.ended.push(journal);
    }

    /// Waits until all clients have ended, and returns all journals.
    pub(super) fn join(mut self) -> Vec<Journal> {
        for mut client in std::mem::take(&mut self.running) {
            until("the client ends", || {
                client.child.try_wait().unwrap().is_some()
            });
            assert!(client.child.wait().unwrap().success());
            self.ended.push(Journal::read(&client.journal));
        }
        self.ended
    }
}

/// Works as the environment says. Without instructions, there is nothing to do.
#[test]
fn works_alone() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let lines: Vec<&str> = role.lines().collect();
    let [path, servers, rules, seed, wanted] = lines[..] else {
        panic!("{role}")
    };
    let file = OpenOptions::new()
        .append(true)
        .open(Path::new(path))
        .unwrap();
    let servers: Vec<_> = servers
        .split(',')
        .map(|address| Server::new(address.parse().unwrap()))
        .collect();
    let random = Random::new(seed.parse().unwrap());
    let rules = rules.parse().unwrap();
    let pending = VecDeque::new();
    let mut client = Client {
        file,
        servers,
        rules,
        random,
        pending,
        asked: 0,
    };
    client.work(wanted.parse().unwrap());
    // The harness would complain that nobody reads its standard output.
    std::process::exit(0);
}

/// A connection to one server, which is made again once it has failed.
pub(super) struct Server {
    address: SocketAddr,
    connection: Option<BufReader<TcpStream>>,
}

impl Server {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            connection: None,
        }
    }

    /// Sends a request, and returns the status and body of the response.
    pub(super) fn post(&mut self, path: &str, body: &Value) -> io::Result<(u16, Value)> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => BufReader::new(TcpStream::connect(self.address)?),
        };
        connection.get_ref().set_nodelay(true)?;
        connection
            .get_ref()
            .set_read_timeout(Some(Duration::from_secs(20)))?;
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.get_mut().write_all(head.as_bytes())?;
        let answer = response(&mut connection)?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

fn response(connection: &mut BufReader<TcpStream>) -> io::Result<(u16, Value)> {
    let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let mut status = None;
    let mut length = 0;
    loop {
        let mut line = String::new();
        connection.read_line(&mut line)?;
        let line = line
            .strip_suffix("\r\n")
            .ok_or_else(ended)?
            .to_ascii_lowercase();
        if status.is_none() {
            status = line
                .split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok());
        } else if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body)?;
    Ok((
        status.ok_or_else(ended)?,
        serde_json::from_slice(&body).unwrap_or_default(),
    ))
}

/// A live reservation, and how it ends.
struct Pending {
    nth: u64,
    id: String,
    costs: Vec<u64>,
    /// The moment of the next step.
    due: Instant,
    renewals: u32,
    repeats: u64,
}

struct Client {
    file: File,
    servers: Vec<Server>,
    rules: usize,
    random: Random,
    pending: VecDeque<Pending>,
    asked: u64,
}

impl Client {
    fn work(&mut self, wanted: u64) {
        let mut held = 0;
        while held < wanted {
            held += u64::from(self.reserve());
            // A few are live at a time; the ones that wait for their moment longer.
            while self.pending.len() > 20 || self.next_is_due() {
                self.next_step();
            }
        }
        while !self.pending.is_empty() {
            self.next_step();
        }
    }

    fn note(&mut self, nth: u64, entry: &Entry) {
        // One write for each, so that none is lost with the process.
        self.file.write_all(entry.line(nth).as_bytes()).unwrap();
    }

    fn next_is_due(&self) -> bool {
        self.pending
            .front()
            .is_some_and(|next| next.due <= Instant::now())
    }

    fn costs(&mut self, least: u64) -> Vec<u64> {
        (0..self.rules)
            .map(|_| least + self.random.below(60))
            .collect()
    }

    /// Asks for one reservation, and returns true if it was made.
    fn reserve(&mut self) -> bool {
        let nth = self.asked;
        self.asked += 1;
        let key = self.random.below(KEYS);
        let estimates = self.costs(1);
        // An eighth expires before its commit, unless it is renewed.
        let is_short = self.random.below(8) == 0;
        let ttl = if is_short { 0.2 } else { 3600.0 };
        let rules: Vec<_> = RULES
            .iter()
            .zip(&estimates)
            .map(|(rule, cost)| json!({"rule": rule, "key": self::key(key), "cost": cost}))
            .collect();
        let server = self.random.below(self.servers.len() as u64) as usize;
        self.note(nth, &Entry::Asked { key, estimates });
        let answer = self.servers[server].post("/v1/reserve", &json!({"rules": rules, "ttl": ttl}));
        match answer {
            Ok((200, body)) => {
                self.note(nth, &Entry::Held);
                self.plan(
                    nth,
                    body["reservation"].as_str().unwrap().to_owned(),
                    is_short,
                );
                return true;
            }
            Ok((503, _)) => self.note(
                nth,
                &Entry::Failed {
                    server,
                    at: SystemTime::now(),
                },
            ),
            Ok(other) => panic!("{other:?}"),
            // It may have been reserved.
            Err(_) => {}
        }
        pause();
        false
    }

    /// Chooses how a reservation ends: with the estimate or another cost, with none, or never; at
    /// once or late, and after how many renewals and repetitions.
    fn plan(&mut self, nth: u64, id: String, is_short: bool) {
        let costs = match self.random.below(8) {
            0 => return,
            1 => vec![0; self.rules],
            _ => self.costs(0),
        };
        let repeats = self.random.below(3);
        let renewals = u32::from(self.random.below(2) == 0);
        let wait = if is_short {
            100 + self.random.below(250)
        } else {
            self.random.below(20)
        };
        let due = Instant::now() + Duration::from_millis(wait);
        let pending = Pending {
            nth,
            id,
            costs,
            due,
            renewals,
            repeats,
        };
        let place = self.pending.partition_point(|other| other.due <= due);
        self.pending.insert(place, pending);
    }

    fn next_step(&mut self) {
        let Some(mut next) = self.pending.pop_front() else {
            return;
        };
        std::thread::sleep(next.due.saturating_duration_since(Instant::now()));
        if next.renewals > 0 {
            next.renewals -= 1;
            let renewal = json!({"reservation": next.id, "ttl": 3600});
            let (status, _) = self.until_answered("/v1/renew", &renewal, |_| ());
            assert!([204, 404].contains(&status), "{status}");
            next.due = Instant::now() + Duration::from_millis(self.random.below(150));
            let place = self.pending.partition_point(|other| other.due <= next.due);
            return self.pending.insert(place, next);
        }
        self.commit(&next);
    }

    fn commit(&mut self, pending: &Pending) {
        let Pending {
            nth,
            id,
            costs,
            repeats,
            ..
        } = pending;
        self.note(
            *nth,
            &Entry::Committing {
                costs: costs.clone(),
            },
        );
        let by_rule = |costs: &[u64]| {
            let each = RULES.iter().zip(costs);
            let costs: serde_json::Map<_, _> = each
                .map(|(rule, cost)| ((*rule).to_owned(), json!(cost)))
                .collect();
            json!({"reservation": id, "costs": costs})
        };
        let mut unanswered = 0;
        let (status, _) = self.until_answered("/v1/commit", &by_rule(costs), |_| unanswered += 1);
        match status {
            200 => self.note(*nth, &Entry::Committed { unanswered }),
            404 => self.note(*nth, &Entry::Gone { unanswered }),
            other => panic!("{other}"),
        }
        for _ in 0..*repeats {
            // Other costs, which must not count.
            let (status, body) = {
                let other = self.costs(1);
                self.until_answered("/v1/commit", &by_rule(&other), |_| ())
            };
            assert!(status == 404 || body["repeated"] == true, "{body}");
        }
    }

    /// Sends a request to one server after the other until one answers it.
    fn until_answered(
        &mut self,
        path: &str,
        body: &Value,
        mut unanswered: impl FnMut(&mut Server),
    ) -> (u16, Value) {
        loop {
            let server = self.random.below(self.servers.len() as u64) as usize;
            match self.servers[server].post(path, body) {
                Ok((503, _)) | Err(_) => unanswered(&mut self.servers[server]),
                Ok(answer) => return answer,
            }
            pause();
        }
    }
}
