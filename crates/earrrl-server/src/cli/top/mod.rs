//! The command `earrrl top`: the clients of a running server, by rate, as a table that is printed at intervals.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use earrrl_logs::line::Escaped;
use remote::Remote;
use rustix::termios::tcgetwinsize;

use super::CliFailure;
use super::http_client::ServerOptions;

mod remote;

/// Show the clients of a running server by rate, again and again
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  earrrl top --rule login
  earrrl top --server 127.0.0.1:9090 --once --output json")]
pub(super) struct TopArgs {
    /// The name of the rule to show, the first one if there is no name
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,

    #[command(flatten)]
    server: ServerOptions,

    /// Print one table, and end
    #[arg(long)]
    once: bool,

    /// The form of what --once prints
    #[arg(long, value_name = "FORM", default_value = "table", requires = "once")]
    output: TopOutput,

    /// The number of clients, 1 to 1000; of a rule with levels, of each level
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,

    /// The seconds between two tables
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3600))]
    interval: u16,
}

/// The forms of what `--once` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TopOutput {
    /// One row for each client
    Table,
    /// One JSON object
    Json,
}

/// The sequence that moves to the upper left corner of a terminal and clears it.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Runs `earrrl top`.
pub(super) fn run(args: TopArgs) -> Result<ExitCode, CliFailure> {
    let server = Remote {
        client: args.server.client().map_err(CliFailure::new)?,
        count: args.limit.into(),
    };
    let rule = args.rule.as_deref();
    let mut last = server.snapshot(rule).map_err(CliFailure::new)?;
    if args.once {
        let text = match args.output {
            TopOutput::Table => last.table(None),
            TopOutput::Json => format!("{}\n", last.json()),
        };
        io::stdout().write_all(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&last.table(None))?;
    loop {
        thread::sleep(Duration::from_secs(args.interval.into()));
        match server.snapshot(rule) {
            Ok(snapshot) => {
                print(&snapshot.table(Some(&last)))?;
                last = snapshot;
            }
            // The server may be restarting.
            Err(error) => print(&format!("{}\n", Escaped(error.as_bytes())))?,
        }
    }
}

/// Prints a table after the last one; in a terminal, in its place, and only what the screen has room for.
fn print(table: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if !out.is_terminal() {
        writeln!(out, "{table}")?;
        return out.flush();
    }
    let lines = match tcgetwinsize(&out)?.ws_row {
        0 => usize::MAX,
        rows => usize::from(rows) - 1,
    };
    let shown: String = table.split_inclusive('\n').take(lines).collect();
    write!(out, "{CLEAR}{shown}")?;
    out.flush()
}
