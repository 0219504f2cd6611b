//! `earrrl replay`: the clients that rules would have limited.

use std::io::{self, BufWriter, IsTerminal as _, StdoutLock, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use earrrl::{Mode, Rule};
use ipnet::IpNet;

use super::failure::warn;
use super::{CliFailure, log};
use earrrl_logs::format::Format;
use earrrl_logs::line::Escaped;
use earrrl_logs::reading::{
    ClientNames, ClientNumbers, HeldBack, LogReader, LoggedRequest, Requests,
};
use earrrl_logs::replay::Replay;
use earrrl_logs::report::page::Origin;
use earrrl_logs::report::{self, BlockTerms, Blocker, Blocklist, HtmlContext, Summary};
use earrrl_logs::suggest::{Profiles, rule_toml};
use earrrl_logs::text::printable_json;

/// Show who would have been limited, under every rule side by side
///
/// Reads the logs of web servers, proxies, load balancers, mail servers and the ssh daemon, JSON lines
/// and CSV, plain or compressed, and puts each request through each rule.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE, after_long_help = example_and_formats())]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(super) log: log::LogArgs,

    /// A rule to try, see below; may be given several times. Without one, the rule that `suggest`
    /// advises is tried and printed
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<Rule>,

    /// A server's configuration to try instead: its rules, keys, costs, exemptions, all together
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rules", "key", "costs", "ipv4_prefix", "ipv6_prefix"])]
    pub(super) config: Option<std::path::PathBuf>,

    /// The form of the output
    #[arg(long, value_name = "FORM", default_value = "table")]
    pub(super) output: ReplayOutput,

    /// Draw the requested and the allowed rate over time into an SVG file
    #[arg(long, value_name = "FILE", value_parser = super::figure::file)]
    pub(super) plot: Option<std::path::PathBuf>,

    /// Replay requests in the order of their lines, which is that of their times; takes memory for clients only
    #[arg(long)]
    assume_sorted: bool,

    /// Go on reading the log while it is written, also when it is rotated, until Ctrl-C; requests count
    /// in the order of their lines
    #[arg(long)]
    follow: bool,

    #[command(flatten)]
    list: ListArgs,
}

/// The flags of the lists of clients to be blocked.
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// The time for which a list of limited clients is valid
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = earrrl_logs::text::parse_time)]
    expire: Duration,

    /// The least number of requests that a client of a list has lost, beside at least half of its own
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    min_denied: u64,

    /// The addresses or networks of your proxies, which no list has; private addresses are in none either
    #[arg(long, value_name = "NETWORK,…", value_delimiter = ',', value_parser = trusted)]
    trusted_proxies: Vec<IpNet>,

    /// Write the list although the log's addresses look like those of proxies
    #[arg(long)]
    direct: bool,
}

impl ListArgs {
    fn terms(&self) -> BlockTerms {
        BlockTerms {
            min_denied: self.min_denied,
            trusted: self.trusted_proxies.clone(),
            now: log::now(),
            expiry: self.expire,
        }
    }
}

fn trusted(text: &str) -> Result<IpNet, String> {
    let network = earrrl_logs::line::network(text);
    network.ok_or_else(|| "expected an address or a network, such as 192.0.2.0/24".into())
}

/// The size of a panel of a figure in a file.
pub(super) const PLOT: (u32, u32) = (640, 280);

const EXAMPLE: &str = concat!(
    "\
Example:
  earrrl replay access.log.gz --rule 'recent-average 1/s half-life=10s strict' \\
                              --rule 'fixed-window 60/1m'",
    include_str!("rules.txt")
);

/// Returns the example for the help, followed by a line for each format of logs.
fn example_and_formats() -> String {
    let formats = format!("{}{}", Format::help(), include_str!("formats_after.txt"));
    format!("{EXAMPLE}{}{formats}", include_str!("formats.txt"))
}

/// The forms of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ReplayOutput {
    /// One row for each rule, and the clients that it limits most
    Table,
    /// The same as one JSON object
    Json,
    /// One line for each request and rule, in the order of their times
    Jsonl,
    /// A page with figures, to be opened in a browser
    Html,
    /// The clients that lost half of their requests as `deny` directives, to be included in nginx's
    /// configuration
    NginxDeny,
    /// These clients as a table for `nft -f`, which drops what they send
    Nft,
    /// A row for each rule and each client that lost half of its requests under it
    Csv,
}

impl ReplayOutput {
    /// Returns true if this form of output is a list of clients to be blocked.
    pub(super) fn is_list(self) -> bool {
        self == Self::Csv || self.blocker().is_some()
    }

    /// Returns the program for which this form of output is a list of blocked addresses.
    fn blocker(self) -> Option<Blocker> {
        match self {
            Self::NginxDeny => Some(Blocker::Nginx),
            Self::Nft => Some(Blocker::Nft),
            Self::Table | Self::Json | Self::Jsonl | Self::Html | Self::Csv => None,
        }
    }
}

/// Runs `earrrl replay`.
pub(crate) fn run(mut args: ReplayArgs) -> Result<ExitCode, CliFailure> {
    args.check()?;
    let mut reader = LogReader::new(args.log.selection());
    let mut held = HeldBack::default();
    let (mut run, whole) = if args.streams()? {
        let mut run = Run::new(&args);
        let whole = args.read(&mut reader, |c, requests| run.take(c, requests))?;
        (run, whole)
    } else {
        let whole = args.read(&mut reader, |_, requests| held.extend(requests))?;
        held.sort();
        if args.rules.is_empty() {
            args.rules = super::suggest::advice(&reader, &held)?;
        }
        let mut run = Run::new(&args);
        held.each(|requests| run.take(&reader.clients, requests))?;
        (run, whole)
    };
    match args.output.is_list() {
        true => run.write_list(&args, &mut reader)?,
        false if args.output == ReplayOutput::Html => run.write_page(&args, &mut reader, &held)?,
        false => run.finish(&reader)?,
    }
    args.draw(&run.replay)?;
    log::warn_of_disorder(run.replay.back, run.replay.events);
    log::warn_of_doubts(&reader, &args.log, || run.counts(&reader));
    log::warn_of_skipped_lines(&reader, &args.log);
    Ok(log::exit_code(&reader, whole))
}

impl ReplayArgs {
    /// Returns an error if flags are set that exclude each other.
    fn check(&self) -> Result<(), CliFailure> {
        if self.log.anonymize && self.output.blocker().is_some() {
            return Err(CliFailure::new(
                "--anonymize hides the addresses that --output is to list",
            ));
        }
        // A log does not say how long each request took.
        let checked = self
            .rules
            .iter()
            .try_for_each(|rule| rule.accept_mode(Mode::Check));
        checked.map_err(|error| CliFailure::new(error.to_string()))
    }

    fn replay(&self) -> Replay {
        let replay = Replay::new(self.rules.iter().cloned());
        if self.shows_time() {
            replay.with_timeline()
        } else {
            replay
        }
    }

    /// Returns true if the output includes a figure over time.
    fn shows_time(&self) -> bool {
        self.plot.is_some() || self.output == ReplayOutput::Html
    }

    /// Returns true if requests are replayed as they are read, without reordering by time.
    fn streams(&self) -> Result<bool, CliFailure> {
        let flag = match self.follow {
            true => "--follow",
            false => "--assume-sorted",
        };
        if self.is_in_order() && self.output == ReplayOutput::Html {
            return Err(CliFailure::new(format!(
                "html goes through the log twice: leave out {flag}"
            )));
        }
        if self.is_in_order() && self.rules.is_empty() {
            return Err(CliFailure::new(format!(
                "{flag} needs a --rule: advice takes the whole log"
            )));
        }
        Ok(self.is_in_order())
    }

    /// Returns true if requests count in the order of their lines.
    pub(super) fn is_in_order(&self) -> bool {
        self.assume_sorted || self.follow
    }

    /// Reads the logs as [`log::read`] and [`log::follow`] do.
    pub(super) fn read(
        &self,
        reader: &mut LogReader,
        take: impl FnMut(&ClientNumbers, &Requests<'_>) -> io::Result<()>,
    ) -> Result<bool, CliFailure> {
        match self.follow {
            true => log::follow(&self.log, reader, take),
            false => log::read(&self.log, reader, take),
        }
    }

    /// Returns the command as it was given, and the logs that it reads.
    fn origin(&self) -> Origin {
        let words = std::env::args_os().skip(1);
        let words = words.map(|word| word.to_string_lossy().into_owned());
        let files = self.log.files.iter();
        Origin {
            command: std::iter::once("earrrl".to_owned()).chain(words).collect(),
            files: files.map(|file| file.display().to_string()).collect(),
        }
    }

    /// Reads the logs again, to profile these clients.
    fn profiles(&self, reader: &mut LogReader, clients: impl Iterator<Item = u32>) -> Profiles {
        if self.log.files.iter().any(|file| file == Path::new("-")) {
            warn(
                "standard input cannot be read twice: crawlers are not marked, and proxies are found by their \
                 addresses alone",
            );
        }
        self.log.profiles(reader, clients)
    }

    fn draw(&self, replay: &Replay) -> Result<(), CliFailure> {
        let (Some(path), Some(timeline)) = (&self.plot, &replay.timeline) else {
            return Ok(());
        };
        let rules = replay.trials.iter().enumerate();
        let columns: Vec<_> = rules
            .map(|(place, trial)| (format!("permitted by {}", trial.rule), place + 1, place))
            .collect();
        let figure = report::over_time(timeline, 0, &columns, PLOT);
        earrrl_logs::plot::save(&figure, path).map_err(CliFailure::new)
    }
}

/// The rules that are replayed, and the output for their decisions.
struct Run {
    replay: Replay,
    names: ClientNames,
    output: ReplayOutput,
    out: BufWriter<StdoutLock<'static>>,
}

impl Run {
    fn new(args: &ReplayArgs) -> Self {
        Self {
            replay: args.replay(),
            names: ClientNames::new(args.log.anonymize),
            output: args.output,
            out: BufWriter::with_capacity(1 << 16, io::stdout().lock()),
        }
    }

    /// Judges requests as they are read; an empty slice means that there is nothing to read now.
    fn take(&mut self, clients: &ClientNumbers, requests: &[LoggedRequest]) -> io::Result<()> {
        if requests.is_empty() {
            return self.out.flush();
        }
        if self.output == ReplayOutput::Jsonl {
            return requests
                .iter()
                .try_for_each(|&request| self.write_decisions(clients, request));
        }
        self.replay.judge_all(requests);
        Ok(())
    }

    fn write_decisions(
        &mut self,
        clients: &ClientNumbers,
        request: LoggedRequest,
    ) -> io::Result<()> {
        let key = serde_json::to_string(&self.names.exact(clients, request.client))?;
        let key = printable_json(key);
        let out = &mut self.out;
        self.replay.decide(request, |rule, decision| {
            report::write_jsonl(out, request.time, &key, (rule, request.cost), &decision)
        })
    }

    /// Writes the report as a page.
    fn write_page(
        &mut self,
        args: &ReplayArgs,
        reader: &mut LogReader,
        held: &HeldBack,
    ) -> io::Result<()> {
        let Some(timeline) = &self.replay.timeline else {
            return Ok(());
        };
        let limited = report::limited(&self.replay).into_iter();
        let profiles = args.profiles(reader, limited.map(|(client, _)| client));
        let summary = Summary {
            reader,
            replay: &self.replay,
            names: &self.names,
        };
        let terms = args.log.terms(held.unit() == "requests");
        let config = |rule: &Rule| rule_toml(rule, &terms);
        let context = HtmlContext {
            origin: args.origin(),
            profiles: &profiles,
            config: args.log.check_terms().is_ok().then_some(&config),
        };
        report::write_html(&mut self.out, &summary, (timeline, held), &context)?;
        self.out.flush()
    }

    fn finish(&mut self, reader: &LogReader) -> io::Result<()> {
        let summary = Summary {
            reader,
            replay: &self.replay,
            names: &self.names,
        };
        match self.output {
            ReplayOutput::Table => report::write_table(&mut self.out, &summary)?,
            ReplayOutput::Json => report::write_json(&mut self.out, &summary)?,
            ReplayOutput::Html
            | ReplayOutput::Jsonl
            | ReplayOutput::Csv
            | ReplayOutput::NginxDeny
            | ReplayOutput::Nft => {}
        }
        self.out.flush()
    }

    /// Returns the number of requests of each client.
    fn counts(&self, reader: &LogReader) -> Vec<u64> {
        let clients = 0..reader.clients.len() as u32;
        clients.map(|client| self.replay.requests(client)).collect()
    }

    /// Writes the list of clients to be blocked.
    ///
    /// # Errors
    /// Returns an error if the addresses of the log look like those of proxies.
    fn write_list(&mut self, args: &ReplayArgs, reader: &mut LogReader) -> Result<(), CliFailure> {
        let replay = &self.replay;
        let names = &self.names;
        let list = Blocklist::new(
            &Summary {
                reader,
                replay,
                names,
            },
            args.list.terms(),
        );
        let counts = self.counts(reader);
        let profiles = args.profiles(reader, list.clients().chain(report::busiest(&counts)));
        let proxies = report::proxies(&reader.clients, &counts, &profiles);
        if let (Some(found), false) = (proxies, args.list.direct) {
            return Err(CliFailure::new(format!(
                "no list is written: {found}, which would block everybody behind proxies. {} \
                 --direct lists them nevertheless",
                log::key_of_visitors(profiles.has_forwarder())
            )));
        }
        let summary = Summary {
            reader,
            replay,
            names,
        };
        match self.output.blocker() {
            Some(blocker) => list.write(&mut self.out, blocker, &summary, &profiles)?,
            None => {
                let mut csv = Vec::new();
                list.write_csv(&mut csv, &summary)?;
                write_safely(&mut self.out, &csv, io::stdout().is_terminal())?;
            }
        }
        self.out.flush()?;
        if let Some(left_out) = list.left_out(self.output.blocker().is_some()) {
            warn(&left_out);
        }
        Ok(())
    }
}

/// Writes text. Control characters in its lines are escaped if a terminal would obey them.
fn write_safely(out: &mut impl Write, text: &[u8], is_terminal: bool) -> io::Result<()> {
    if !is_terminal {
        return out.write_all(text);
    }
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.split(|&b| b == b'\n')
        .try_for_each(|line| writeln!(out, "{}", Escaped(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_no_key_of_csv() {
        let csv = "client\na\u{1b}[2J\u{9b}b\n".as_bytes();
        for (is_terminal, expected) in [(false, csv), (true, &b"client\na\\x1b[2J\\x9bb\n"[..])] {
            let mut out = Vec::new();
            write_safely(&mut out, csv, is_terminal).unwrap();
            assert_eq!(out, expected);
        }
    }
}
