//! `earrrl replay`: who would have been limited.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use earrrl::Rule;

use super::failure::ERROR;
use super::progress::Progress;
use super::{Failure, log};
use crate::replay::report::{self, Summary};
use crate::replay::{Clients, Held, Names, Reader, Replay, Request};

/// Shows who would have been limited, under every rule side by side
///
/// Reads web servers' logs (common, combined, with virtual host, JSON lines), CSV and the ssh
/// daemon's syslog, plain, .gz or .zst, and puts each request through each rule.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    log: log::LogArgs,

    /// A rule to try; may be given several times
    #[arg(long = "rule", value_name = "RULE", required = true)]
    rules: Vec<Rule>,

    /// What to print
    #[arg(long, value_name = "FORM", default_value = "table")]
    output: Output,

    /// The log is in the order of its times: hold nothing, in memory that grows with clients only
    #[arg(long)]
    assume_sorted: bool,
}

const EXAMPLE: &str = "\
Example:
  earrrl replay access.log.gz --rule 'recent-average 1/s half-life=10s strict' \\
                              --rule 'fixed-window 60/1m'";

/// What to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A row a rule, and each rule's top offenders
    Table,
    /// The same as one object
    Json,
    /// A line an event and rule, in the order of their times
    Jsonl,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let mut reader = Reader::new(args.log.selection());
    let mut run = Run {
        replay: Replay::new(args.rules),
        names: Names::new(args.log.anonymize),
        output: args.output,
        out: BufWriter::with_capacity(1 << 16, io::stdout().lock()),
    };
    let progress = Progress::of(&args.log.files);
    let whole = if args.assume_sorted {
        log::read(&args.log, &mut reader, &progress, |clients, request| run.take(clients, request))?
    } else {
        let mut held = Held::default();
        let whole = log::read(&args.log, &mut reader, &progress, |_, request| {
            held.push(request);
            Ok(())
        })?;
        for request in held.into_requests() {
            run.take(&reader.clients, request)?;
        }
        whole
    };
    progress.clear();
    run.finish(&reader)?;
    log::tell_skipped(&reader, args.log.anonymize);
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(ERROR) })
}

/// The rules being tried, and where the decisions go.
struct Run<W> {
    replay: Replay,
    names: Names,
    output: Output,
    out: W,
}

impl<W: Write> Run<W> {
    #[inline]
    fn take(&mut self, clients: &Clients, request: Request) -> io::Result<()> {
        if self.output == Output::Jsonl {
            return self.tell(clients, request);
        }
        self.replay.judge(request);
        Ok(())
    }

    fn tell(&mut self, clients: &Clients, request: Request) -> io::Result<()> {
        let key = serde_json::to_string(&self.names.exact(clients, request.client))?;
        let out = &mut self.out;
        self.replay.decide(request, |rule, decision| {
            report::write_jsonl(out, request.time, &key, (rule, request.cost), &decision)
        })
    }

    fn finish(&mut self, reader: &Reader) -> io::Result<()> {
        let summary = Summary { reader, replay: &self.replay, names: &self.names };
        match self.output {
            Output::Table => report::write_table(&mut self.out, &summary)?,
            Output::Json => report::write_json(&mut self.out, &summary)?,
            Output::Jsonl => {}
        }
        self.out.flush()
    }
}
