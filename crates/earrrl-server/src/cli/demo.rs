//! The command `earrrl demo`: a server, and two clients that call it over HTTP, one of which sends too much.
//!
//! A thread runs the server, with its states in memory. A thread for each client sends its requests, and passes the
//! answers to the main thread, which prints a line for each client once a second.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use axum::http::Method;
use earrrl::SystemClock;
use earrrl_server::config::Config;
use earrrl_server::config::listen::Protocol;
use earrrl_server::serve::run::Running;
use serde_json::{Value, json};

use super::CliFailure;
use super::http_client::HttpClient;
use super::progress::Stop;

const RULE: &str = "recent-average 1/s half-life=10s strict";
/// The clients, and the time between two of their requests: 1.67 and 0.8 requests a second.
const CLIENTS: [(&str, Duration); 2] = [
    ("abuser", Duration::from_millis(600)),
    ("honest", Duration::from_millis(1250)),
];
/// The addresses of the API and of the dashboard. The second pair, of any free ports, is for machines on which another
/// program has the first.
const ADDRESSES: [[&str; 2]; 2] = [
    ["127.0.0.1:8080", "127.0.0.1:9090"],
    ["127.0.0.1:0", "127.0.0.1:0"],
];
/// The time between two updates.
const INTERVAL: Duration = Duration::from_secs(1);
/// The number of rates that the plot of a client has.
const PLOTTED: usize = 24;
/// The columns of a plot. The limit, 1/s, is in the middle.
const COLUMNS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Watch a limit at work: a server with an abusive and an honest client, and a dashboard
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  earrrl demo --for 30s")]
pub(super) struct DemoArgs {
    /// The time after which the demo ends, as `30s`; without it, Ctrl-C ends it
    #[arg(long = "for", value_name = "TIME", value_parser = earrrl::internal::parse_duration)]
    duration: Option<Duration>,
}

/// Runs `earrrl demo`.
pub(super) fn run(args: &DemoArgs) -> Result<ExitCode, CliFailure> {
    let stop = Stop::on_interrupt()?;
    let [api, admin] = start_server()?;
    introduce(&api, &admin)?;
    let start = Instant::now();
    let (sender, answers) = channel();
    for (index, (name, interval)) in CLIENTS.into_iter().enumerate() {
        let server = HttpClient::new(api.parse().map_err(CliFailure::new)?, None, None);
        let server = server.map_err(CliFailure::new)?;
        let sender = sender.clone();
        thread::spawn(move || {
            send_forever(name, interval, &server, |answer| {
                sender.send((index, answer)).is_ok()
            });
        });
    }
    let mut clients = CLIENTS.map(|(name, _)| ClientLine::new(name));
    let mut printed = false;
    let ends = |elapsed| args.duration.is_some_and(|duration| elapsed >= duration);
    while !stop.is_set() && !ends(start.elapsed()) {
        thread::sleep(INTERVAL);
        for (index, answer) in answers.try_iter() {
            clients[index].update(&answer.map_err(CliFailure::new)?);
        }
        print(&mut clients, start.elapsed(), printed)?;
        printed = true;
    }
    conclude(&clients)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the server in a thread, and returns the addresses of the API and of the dashboard.
fn start_server() -> Result<[String; 2], CliFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let guard = runtime.enter();
    let mut started = Err(CliFailure::new("no address is free"));
    for [http, admin] in ADDRESSES {
        let config = format!(
            "[server]\nhttp = {http:?}\nadmin = {admin:?}\nresp = \"off\"\n\
             [[rule]]\nname = \"demo\"\nlimit = {RULE:?}\n"
        );
        let config =
            Config::parse(&config, "demo").map_err(|error| CliFailure::new(error.to_string()))?;
        started = Running::start(&config, Arc::new(SystemClock::new())).map_err(CliFailure::new);
        if started.is_ok() {
            break;
        }
    }
    let running = started?;
    let address = |protocol| running.address(protocol).map(ToString::to_string);
    let addresses =
        [Protocol::Http, Protocol::Admin].map(|protocol| address(protocol).unwrap_or_default());
    drop(guard);
    thread::spawn(move || runtime.block_on(running.until(std::future::pending())));
    Ok(addresses)
}

fn introduce(api: &str, admin: &str) -> io::Result<()> {
    writeln!(
        io::stdout(),
        "One rule, {RULE:?}, and two clients: abuser sends 1.67 requests a second, honest 0.8.\n\
         In the plots of their average rates, the limit is at half the height.\n\
         The dashboard is at http://{admin}/. To be the third client, run this in another terminal, and run it often:\n\n  \
         curl -H 'content-type: application/json' -d '{{\"rule\":\"demo\",\"key\":\"you\"}}' http://{api}/v1/check\n"
    )
}

/// Sends the requests of a client, and passes on each answer, until that returns false.
fn send_forever(
    name: &str,
    interval: Duration,
    server: &HttpClient,
    pass: impl Fn(Result<Value, String>) -> bool,
) {
    let body = json!({ "rule": "demo", "key": name }).to_string();
    let start = Instant::now();
    for count in 0.. {
        let due = start + interval * count;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let answer = server.send(Method::POST, "/v1/check", Some(body.clone()));
        let answer = answer.and_then(|(_, body)| {
            serde_json::from_str(&body).map_err(|error| format!("the server's answer: {error}"))
        });
        if !pass(answer) {
            return;
        }
    }
}

/// A client, as the answers to its requests describe it.
#[derive(Debug)]
struct ClientLine {
    name: &'static str,
    requests: u64,
    allowed: u64,
    /// The client's average rate as of its last request.
    rate: f64,
    /// The seconds until the client may come back; 0 if its last request was allowed.
    wait: f64,
    /// The rates at the last updates, the newest last.
    plot: Vec<char>,
}

impl ClientLine {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            requests: 0,
            allowed: 0,
            rate: 0.0,
            wait: 0.0,
            plot: Vec::new(),
        }
    }

    fn update(&mut self, answer: &Value) {
        let number = |field: &str| answer[field].as_f64().unwrap_or_default();
        self.requests += 1;
        self.allowed += u64::from(answer["allowed"] == true);
        self.rate = number("rate");
        self.wait = number("retry_after");
    }

    /// Adds the present rate to the plot, and returns the client's line.
    fn line(&mut self, elapsed: Duration) -> String {
        let column = (self.rate * COLUMNS.len() as f64 / 2.0) as usize;
        self.plot.push(COLUMNS[column.min(COLUMNS.len() - 1)]);
        let first = self.plot.len().saturating_sub(PLOTTED);
        self.plot.drain(..first);
        let verdict = match self.wait {
            0.0 => "allowed".to_owned(),
            wait => format!("denied, may come back in {wait:.1} s"),
        };
        format!(
            "{:>4} s  {:<6}  {:.2}/s  {:<PLOTTED$}  {verdict}",
            elapsed.as_secs(),
            self.name,
            self.rate,
            self.plot.iter().collect::<String>()
        )
    }
}

/// Prints a line for each client: in a terminal in place of the lines printed before, elsewhere below them.
fn print(clients: &mut [ClientLine], elapsed: Duration, printed: bool) -> io::Result<()> {
    let mut output = io::stdout();
    let in_place = output.is_terminal();
    let up = match in_place && printed {
        true => format!("\x1b[{}A", clients.len()),
        false => String::new(),
    };
    let end = if in_place { "\x1b[K\n" } else { "\n" };
    let lines = clients.iter_mut().map(|client| client.line(elapsed) + end);
    let text = up + &lines.collect::<String>();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// Prints what each client got.
fn conclude(clients: &[ClientLine]) -> io::Result<()> {
    let mut output = io::stdout();
    writeln!(output)?;
    for client in clients {
        writeln!(
            output,
            "{}: {} of {} requests allowed",
            client.name, client.allowed, client.requests
        )?;
    }
    Ok(())
}
