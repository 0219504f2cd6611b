//! The flags and messages that all commands that read logs have in common.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use earrrl_logs::format::{Format, Hints, LinePattern, notation};
use earrrl_logs::line::{Escaped, Skip};
use earrrl_logs::reading::{
    ClientNumbers, CostRule, Filter, LogKey, LogReader, ReadError, Requests, Selection,
    fields_hint, parse_bound,
};
use earrrl_logs::report;
use earrrl_logs::suggest::{Profiles, profile_texts};
use earrrl_tower::Prefixes;

use super::CliFailure;
use super::attributes::{LogCondition, LogConditions, fields};
use super::failure::{self, ERROR, warn};
use super::progress::LogWatch;

/// The flags that select logs, and the fields of their lines.
#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// Logs, plain or compressed; - or nothing for standard input
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) files: Vec<PathBuf>,

    /// The field that identifies a client: client, user, path or any field of the log; several with
    /// commas between them make a compound key
    #[arg(long, value_name = "FIELD,…", default_value = "client")]
    pub(super) key: LogKey,

    /// The format of the logs, or the product that writes them; auto detects it for each
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = format)]
    format: FormatArg,

    /// A regular expression of lines in no known format, with the groups (?<time>…), (?<key>…) and,
    /// where requests differ in it, (?<cost>…)
    #[arg(long, value_name = "REGEX", value_parser = pattern, conflicts_with = "format")]
    pattern: Option<Arc<LinePattern>>,

    /// The format of the lines in the notation of nginx ($remote_addr …) or Apache (%h …)
    #[arg(long, value_name = "NOTATION", value_parser = log_format, conflicts_with_all = ["format", "pattern"])]
    log_format: Option<Arc<LinePattern>>,

    /// The format, in the notation of strptime, of the time that --pattern or --log-format finds
    #[arg(long, value_name = "NOTATION", value_parser = time_format)]
    time_format: Option<String>,

    /// The JSON field (dotted, where nested) or CSV column with the time
    #[arg(long, value_name = "FIELD")]
    time_field: Option<String>,

    /// The JSON field (dotted, where nested) or CSV column with the client
    #[arg(long, value_name = "FIELD")]
    key_field: Option<String>,

    /// The year of the first line, since syslog lines have none [default: the latest year in which no line
    /// is later than the file's last modification]
    #[arg(long, value_name = "YEAR", value_parser = clap::value_parser!(u32).range(1970..=2499))]
    year: Option<u32>,

    /// The cost of a request: a number, field:NAME, or path:/some/path=COST, where a * at the end
    /// of the path stands for anything; may be given several times, the first path that fits counts
    #[arg(long = "cost", value_name = "COST", allow_hyphen_values = true)]
    pub(super) costs: Vec<CostRule>,

    /// Read only requests whose field has this value, such as path=/login, path=/api/*, method=POST,
    /// status=4* or client=192.0.2.0/24; may be given several times, all must hold. Paths are compared
    /// as in rules
    #[arg(long = "where", value_name = "NAME=VALUE")]
    pub(super) conditions: Vec<LogCondition>,

    /// Read only requests from this time on: 2024-01-31T12:00:00Z, 2024-01-31, or an age such as 2h
    #[arg(long, value_name = "TIME", value_parser = bound)]
    since: Option<u64>,

    /// Read only requests before this time
    #[arg(long, value_name = "TIME", value_parser = bound)]
    until: Option<u64>,

    /// The number of bits of an IPv4 address that identify a client
    #[arg(long, value_name = "BITS", default_value_t = 32, value_parser = clap::value_parser!(u8).range(0..=32))]
    pub(super) ipv4_prefix: u8,

    /// The number of bits of an IPv6 address that identify a client
    #[arg(long, value_name = "BITS", default_value_t = 64, value_parser = clap::value_parser!(u8).range(0..=128))]
    pub(super) ipv6_prefix: u8,

    /// Replace clients by pseudonyms, which differ in every run
    #[arg(long)]
    pub(crate) anonymize: bool,
}

/// The number of requests from which it is suspicious that all have the same client, or each a
/// different one.
const DOUBTFUL: u64 = 100;

/// The format of a log; `None` for `auto`.
type FormatArg = Option<Format>;

fn format(name: &str) -> Result<FormatArg, String> {
    match name {
        "auto" => Ok(None),
        name => Format::named(name)
            .map(Some)
            .ok_or_else(|| format!("expected auto, {}", Format::names())),
    }
}

fn pattern(expression: &str) -> Result<Arc<LinePattern>, String> {
    LinePattern::given(expression).map(Arc::new)
}

fn log_format(notation: &str) -> Result<Arc<LinePattern>, String> {
    notation::pattern(notation).map(Arc::new)
}

fn time_format(format: &str) -> Result<String, String> {
    earrrl_logs::line::time::check_notation(format).map(|()| format.to_owned())
}

fn bound(text: &str) -> Result<u64, String> {
    parse_bound(text, now())
}

/// Returns the current time in nanoseconds since the epoch.
pub(super) fn now() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl LogArgs {
    /// Returns the name of the client's key, from the flags.
    fn key_name(&self) -> String {
        match (self.key.to_string(), &self.key_field) {
            (key, Some(field)) if key == "client" => field.clone(),
            (key, _) => key,
        }
    }

    /// Returns the selection of lines and fields that the flags describe.
    pub(crate) fn selection(&self) -> Selection {
        let pattern = self.pattern.as_ref().or(self.log_format.as_ref());
        let format = pattern.map(|_| Format::Pattern).or(self.format);
        let pattern = pattern.map(|pattern| match &self.time_format {
            Some(format) => Arc::new(pattern.with_time_format(format)),
            None => pattern.clone(),
        });
        Selection {
            format,
            hints: Hints {
                time_field: self.time_field.clone(),
                key_field: self.key_field.clone(),
                year: self.year,
                pattern,
                private: self.anonymize,
            },
            key: self.key.clone(),
            prefixes: Prefixes::new(self.ipv4_prefix, self.ipv6_prefix),
            costs: self.costs.iter().cloned().collect(),
            filter: self.filter(),
        }
    }

    /// Reads the logs again, to profile these clients.
    pub(super) fn profiles(
        &self,
        reader: &mut LogReader,
        clients: impl Iterator<Item = u32>,
    ) -> Profiles {
        Profiles::read(&self.files, self.reader(), &mut reader.clients, clients)
    }

    /// Returns a reader of requests with the texts that describe their clients.
    pub(super) fn reader(&self) -> LogReader {
        LogReader::new(self.selection()).with_texts(profile_texts(fields))
    }

    /// Returns the filter that the flags describe.
    fn filter(&self) -> Filter {
        let conditions = Some(self.conditions.clone()).filter(|all| !all.is_empty());
        let condition = conditions.map(|all| Arc::new(LogConditions::new(all)) as _);
        Filter {
            condition,
            since: self.since,
            until: self.until,
        }
    }
}

/// Reads all logs. Returns false if one of them could not be read to its end.
///
/// # Errors
/// Returns an error if no log could be read at all, or if `take` fails.
pub(crate) fn read(
    args: &LogArgs,
    reader: &mut LogReader,
    mut take: impl FnMut(&ClientNumbers, &Requests<'_>) -> io::Result<()>,
) -> Result<bool, CliFailure> {
    let watch = LogWatch::begin(&args.files)?;
    let mut whole = true;
    for file in &args.files {
        let result = reader.read(file, |source| watch.counted(source), &mut take);
        whole &= is_whole(result, &watch)?;
        if watch.stop.is_set() {
            watch
                .bar
                .suspend(|| warn("interrupted: what was read until then is reported"));
            break;
        }
    }
    watch.bar.finish_and_clear();
    used((reader, args), whole)
}

/// Reads the only log of the arguments while it is written, until Ctrl-C. Returns false if reading
/// failed.
///
/// # Errors
/// Returns an error if there is not exactly one file, if no line of it was used, or if `take` fails.
pub(crate) fn follow(
    args: &LogArgs,
    reader: &mut LogReader,
    mut take: impl FnMut(&ClientNumbers, &Requests<'_>) -> io::Result<()>,
) -> Result<bool, CliFailure> {
    let file = match &args.files[..] {
        [file] if file != Path::new("-") => file,
        _ => {
            return Err(CliFailure::new(
                "--follow reads one file; standard input is read until it ends without it",
            ));
        }
    };
    let watch = LogWatch::begin(&args.files)?;
    let result = reader.follow(file, |source| watch.stop.watch(source), &mut take);
    let whole = is_whole(result, &watch)?;
    used((reader, args), whole)
}

/// Returns true if a log was read to its end or to Ctrl-C, and prints the problem if it was not.
///
/// # Errors
/// Returns an error if the requests could not be processed.
fn is_whole(result: Result<(), ReadError>, watch: &LogWatch) -> Result<bool, CliFailure> {
    match result {
        Ok(()) => Ok(true),
        Err(ReadError::Input(_)) if watch.stop.is_set() => Ok(true),
        Err(ReadError::Input(problem)) => {
            watch.bar.suspend(|| warn(&problem));
            Ok(false)
        }
        Err(ReadError::Output(error)) => Err(error.into()),
        Err(ReadError::Ended) => Err(CliFailure::Reported),
    }
}

/// Returns `whole`, or an error if no line was used.
fn used((reader, args): (&LogReader, &LogArgs), whole: bool) -> Result<bool, CliFailure> {
    match (reader.used(), whole) {
        (0, false) => Err(CliFailure::Reported),
        (0, true) => Err(CliFailure::new(nothing(reader, args))),
        _ => Ok(whole),
    }
}

/// Returns the reason why no line of the log could be used.
fn nothing(reader: &LogReader, args: &LogArgs) -> String {
    match reader.lines {
        0 => {
            let name = |file: &PathBuf| Escaped(file.as_os_str().as_encoded_bytes()).to_string();
            let names: Vec<_> = args.files.iter().map(name).collect();
            format!("{}: the log is empty", names.join(", "))
        }
        lines => {
            let hint = match &reader.fields[..] {
                [] => String::new(),
                fields => format!("; {}", fields_hint(fields)),
            };
            format!(
                "none of {lines} lines is usable: {}{hint}",
                skipped(reader, args)
            )
        }
    }
}

/// Warns if the lines of a log are not in order of time although the flags state that they are.
pub(crate) fn warn_of_disorder(back: u64, requests: u64) {
    if back > 0 {
        warn(&format!(
            "{back} of {requests} requests are earlier than one before them, and counted as of the \
             latest time seen; without --assume-sorted they are put in order"
        ));
    }
}

/// Warns if the field that identifies the client probably does not. `counts` returns the number of
/// requests of each client; it is called only if that matters.
pub(crate) fn warn_of_doubts(
    reader: &LogReader,
    args: &LogArgs,
    counts: impl FnOnce() -> Vec<u64>,
) {
    let requests = reader.used();
    let clients = reader.clients.len() as u64;
    let key = args.key_name();
    if requests < DOUBTFUL {
        return;
    }
    warn_of_proxies(reader, args, counts);
    if clients > 1 && clients < requests {
        return;
    }
    let problem = match clients {
        1 if args.anonymize => format!("all {requests} requests have the same {key}"),
        1 => format!(
            "all {requests} requests have the same {key}, {}",
            Escaped(reader.clients.key(0))
        ),
        _ => format!("each of {requests} requests has a {key} of its own"),
    };
    warn(&format!(
        "{problem}: check that it is the client; --key, --format or --log-format may name another"
    ));
}

/// Returns the exit status of a command that has read logs, and warns if the logs were probably
/// read in another way than meant.
pub(crate) fn exit_code(reader: &LogReader, whole: bool) -> ExitCode {
    reader.doubts.iter().for_each(|doubt| warn(doubt));
    match (whole, reader.doubts.is_empty()) {
        (false, _) => ExitCode::from(ERROR),
        (true, false) => ExitCode::from(failure::DOUBTFUL),
        (true, true) => ExitCode::SUCCESS,
    }
}

/// Warns if the clients have addresses of load balancers or other proxies.
fn warn_of_proxies(reader: &LogReader, args: &LogArgs, counts: impl FnOnce() -> Vec<u64>) {
    if args.key_name() != "client" {
        return;
    }
    if let Some(found) = report::proxies(&reader.clients, &counts(), &Profiles::default()) {
        warn(&format!(
            "{found}: are they load balancers? {}",
            key_of_visitors(true)
        ));
    }
}

/// Returns a sentence about the options that read the visitor's address where the clients are proxies.
/// `is_listed` is true if the log may have lists of X-Forwarded-For.
pub(super) fn key_of_visitors(is_listed: bool) -> &'static str {
    match is_listed {
        true => {
            "--key forwarded_for counts the last address of X-Forwarded-For where the log has it, \
             --key FIELD any other field"
        }
        false => "--key FIELD counts the field with the visitor's address, if the log has one",
    }
}

/// Reports the number of skipped lines and the reasons, if any lines were skipped.
pub(crate) fn warn_of_skipped_lines(reader: &LogReader, args: &LogArgs) {
    let skipped_lines = reader.skips.lines();
    let lines = reader.lines;
    if skipped_lines > 0 {
        let used = reader.used();
        warn(&format!(
            "{lines} lines read, {used} used, {skipped_lines} skipped: {}",
            skipped(reader, args)
        ));
    }
}

/// Returns every reason for skipping lines, each with an example line.
fn skipped(reader: &LogReader, args: &LogArgs) -> String {
    let reasons = reader.skips.by_reason().map(|(skip, lines, examples)| {
        let example = match examples.first() {
            Some(example) if args.anonymize => format!(" ({})", example.place),
            Some(example) => format!(" ({}: `{}`)", example.place, example.text),
            None => String::new(),
        };
        let key = if skip == Skip::Key {
            format!(" {}", args.key_name())
        } else {
            String::new()
        };
        format!("{lines} {}{key}{example}", skip.reason())
    });
    reasons.collect::<Vec<_>>().join("; ")
}
