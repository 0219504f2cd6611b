//! Clients written like production clients: if a connection ends before an answer begins, they
//! reconnect and send the request again. Any other missing answer is a failure.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::atomic::Ordering::Relaxed;

use earrrl_testing::Random;

use super::Chaos;
use crate::support::certificates::{self, Tls};
use crate::support::resp::encode;
use crate::support::tools::{self, tool};
use crate::support::{connect, testdata, until};

/// The reason for a missing answer.
enum Missed {
    /// The connection ended before an answer.
    Ended,
    /// The server answered that it is overloaded or stopping.
    Told,
}

struct Connection<S = TcpStream>(BufReader<S>);

impl Connection {
    fn open(address: SocketAddr) -> Self {
        Self(BufReader::new(connect(address)))
    }
}

impl Connection<Tls> {
    fn open_tls(chaos: &Chaos) -> Self {
        Self(BufReader::new(certificates::connect(
            &chaos.tls, chaos.http,
        )))
    }
}

impl<S: Read + Write> Connection<S> {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Missed> {
        self.0
            .get_mut()
            .write_all(bytes)
            .map_err(|error| ended(&error))
    }

    /// Reads a complete line.
    fn line(&mut self) -> Result<String, Missed> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => Err(Missed::Ended),
            Ok(_) => {
                let whole = line.strip_suffix("\r\n");
                Ok(whole
                    .unwrap_or_else(|| panic!("half an answer: {line:?}"))
                    .to_owned())
            }
            Err(error) => Err(ended(&error)),
        }
    }

    fn skip(&mut self, length: usize) {
        self.0.read_exact(&mut vec![0; length]).unwrap();
    }

    /// Reads the rest of a RESP2 reply whose first line is `first`.
    fn skip_reply(&mut self, first: &str) {
        let number = || first[1..].parse::<i64>().unwrap();
        match first.as_bytes()[0] {
            b'*' => {
                for _ in 0..number() {
                    let next = self.line().unwrap_or_else(|_| panic!("half an answer"));
                    self.skip_reply(&next);
                }
            }
            b'$' if number() >= 0 => self.skip(number() as usize + 2),
            b'$' | b':' | b'+' => {}
            _ => panic!("not expected: {first:?}"),
        }
    }
}

fn ended(error: &std::io::Error) -> Missed {
    match error.kind() {
        ErrorKind::BrokenPipe
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::UnexpectedEof => Missed::Ended,
        _ => panic!("{error}"),
    }
}

/// Returns true if a reply states that the server is overloaded or stopping.
fn is_told(reply: &str) -> bool {
    [
        "overloaded",
        "max number of clients",
        "too many connections",
        "is stopping",
    ]
    .iter()
    .any(|text| reply.starts_with("-ERR") && reply.contains(text))
}

/// Sends pipelines of RESP commands.
pub(super) fn pipelines(chaos: &Chaos, seed: u64) {
    let mut random = Random::new(seed);
    let mut connection = None;
    while chaos.goes_on() {
        let mut requests = Vec::new();
        let depth = 1 + random.below(16);
        for nth in 0..depth {
            let key = format!("client-{}", random.below(50_000)).into_bytes();
            requests.extend(match nth % 4 {
                0 => encode(&[b"CL.THROTTLE", &key, b"15", b"30", b"60"]),
                1 => encode(&[b"EARRRL.CHECK", b"bucket", &key]),
                2 => encode(&[b"EARRRL.ALLOW", b"average", &key]),
                _ => encode(&[b"EARRRL.CHECK", b"window", &key]),
            });
        }
        match pipeline(chaos, &mut connection, &requests, depth) {
            Ok(()) => {}
            Err(Missed::Ended) => connection = None,
            Err(Missed::Told) => {
                chaos.told.fetch_add(1, Relaxed);
                connection = None;
            }
        }
    }
}

fn pipeline(
    chaos: &Chaos,
    connection: &mut Option<Connection>,
    requests: &[u8],
    depth: u64,
) -> Result<(), Missed> {
    let open = match connection {
        Some(open) => open,
        None => {
            let mut fresh = Connection::open(chaos.resp);
            let token = chaos.token();
            fresh.send(&encode(&[b"AUTH", token.as_bytes()]))?;
            match &*fresh.line()? {
                "+OK" => connection.insert(fresh),
                // The token was replaced while the connection waited to be accepted.
                "-WRONGPASS invalid token" if token != chaos.token() => return Err(Missed::Ended),
                told if is_told(told) => return Err(Missed::Told),
                other => panic!("not expected: {other:?}"),
            }
        }
    };
    open.send(requests)?;
    for _ in 0..depth {
        let first = open.line()?;
        if is_told(&first) {
            return Err(Missed::Told);
        }
        // The token was replaced: this command and the rest of the pipeline are refused.
        if first.starts_with("-NOAUTH") {
            return Err(Missed::Ended);
        }
        open.skip_reply(&first);
        chaos.answered.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Sends checks over HTTP and TLS one after the other, some of them on new connections.
pub(super) fn checks(chaos: &Chaos) {
    let mut random = Random::new(9);
    let mut connection = None;
    while chaos.goes_on() {
        if random.below(20) == 0 {
            connection = None;
        }
        let key = random.below(50_000);
        let body = format!("{{\"rule\":\"bucket\",\"key\":\"client-{key}\"}}");
        let token = chaos.token();
        let sent = exchange(&token, chaos, &mut connection, "POST /v1/check", &body);
        match sent {
            // The token was replaced while the request waited to be accepted.
            Ok((401, _)) if token != chaos.token() => {}
            Ok((200 | 429, _)) => {
                chaos.answered.fetch_add(1, Relaxed);
            }
            Ok((503, _)) | Err(Missed::Told) => {
                chaos.told.fetch_add(1, Relaxed);
                connection = None;
            }
            Ok((status, body)) => panic!("{status} {body}"),
            Err(Missed::Ended) => connection = None,
        }
    }
}

fn exchange(
    token: &str,
    chaos: &Chaos,
    connection: &mut Option<Connection<Tls>>,
    what: &str,
    body: &str,
) -> Result<(u16, String), Missed> {
    let open = connection.get_or_insert_with(|| Connection::open_tls(chaos));
    let length = body.len();
    let head = format!(
        "{what} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    open.send(&[head.as_bytes(), body.as_bytes()].concat())?;
    let status = open.line()?.split(' ').nth(1).unwrap().parse().unwrap();
    let mut length = 0;
    let mut closes = false;
    loop {
        let line = open
            .line()
            .unwrap_or_else(|_| panic!("half an answer"))
            .to_lowercase();
        match line.split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(("connection", value)) => closes = value == "close",
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    open.0.read_exact(&mut body).unwrap();
    if closes {
        *connection = None;
    }
    Ok((status, String::from_utf8(body).unwrap()))
}

/// Runs redis-py with single requests and transactions. The library itself repeats requests that
/// were not answered.
pub(super) fn redis_py(chaos: &Chaos) {
    let mut script = tool("python3");
    script.env("PYTHONPATH", tools::folder().join("python"));
    script.arg(testdata("../crates/earrrl-server/tests/clients/chaos.py"));
    let mut script = script
        .arg(chaos.resp.port().to_string())
        .arg(&chaos.token_file);
    script = script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let mut orders = child.stdin.take().unwrap();
    let mut results = BufReader::new(child.stdout.take().unwrap());
    while chaos.goes_on() {
        writeln!(orders).unwrap();
        let mut line = String::new();
        results.read_line(&mut line).unwrap();
        let counts = line
            .trim()
            .split_once(' ')
            .unwrap_or_else(|| panic!("redis-py: {line:?}"));
        chaos.answered.fetch_add(counts.0.parse().unwrap(), Relaxed);
        chaos.told.fetch_add(counts.1.parse().unwrap(), Relaxed);
    }
    drop(orders);
    assert!(child.wait().unwrap().success());
}

/// Runs curl with ten checks on each connection, alternately over HTTP/2 and HTTP/1.1.
pub(super) fn curl(chaos: &Chaos) {
    let mut random = Random::new(10);
    let url = format!("https://localhost:{}/v1/check", chaos.http.port());
    while chaos.goes_on() {
        let token = chaos.token();
        let version = ["--http1.1", "--http2"][random.below(2) as usize];
        let mut curl = tool("curl");
        curl.args([version, "-s", "-w", "%{http_code} %{exitcode}\n"]);
        curl.arg("--cacert").arg(&chaos.authority);
        curl.args(["-H", &format!("Authorization: Bearer {token}")]);
        curl.args(["-H", "Content-Type: application/json"]);
        curl.args([
            "-d",
            &format!(
                "{{\"rule\":\"bucket\",\"key\":\"c{}\"}}",
                random.below(50_000)
            ),
        ]);
        for _ in 0..10 {
            curl.args(["-o", "/dev/null", &url]);
        }
        let output = String::from_utf8(curl.output().unwrap().stdout).unwrap();
        assert_eq!(output.lines().count(), 10, "{output}");
        for line in output.lines() {
            match line {
                "200 0" | "429 0" => drop(chaos.answered.fetch_add(1, Relaxed)),
                "503 0" => drop(chaos.told.fetch_add(1, Relaxed)),
                "401 0" if token != chaos.token() => {}
                // The connection ended before an answer had begun.
                _ if line.starts_with("000 ") => {}
                _ => panic!("curl: {output}"),
            }
        }
    }
}

/// Repeats a GET request until it is answered.
pub(super) fn get(chaos: &Chaos, path: &str) -> String {
    let mut body = None;
    until(path, || {
        let answer = exchange(&chaos.token(), chaos, &mut None, &format!("GET {path}"), "");
        body = answer
            .ok()
            .filter(|(status, _)| *status == 200)
            .map(|(_, body)| body);
        body.is_some()
    });
    body.unwrap()
}

/// Returns the sum of all values of a metric.
pub(super) fn metric(chaos: &Chaos, name: &str) -> u64 {
    let text = get(chaos, "/metrics");
    let of = text.lines().filter(|line| line.starts_with(name));
    of.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}
