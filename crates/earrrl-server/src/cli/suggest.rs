//! `earrrl suggest`: finds the limit that would affect only the worst clients.

use std::io::{self, BufWriter, Write};
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use clap::ValueEnum;
use earrrl::Rule;

use super::failure::warn;
use super::{CliFailure, log};
use earrrl_logs::format::Field;
use earrrl_logs::reading::{ClientNames, ClientNumbers, HeldBack, LogReader};
use earrrl_logs::suggest::{
    Advice, ClientShare, FoundParts, HALF_LIVES, JudgedAdvice, PartRules, Peaks, Profiles, Rows,
    RuleTerms, Suspected, Sweep, figure, judge, most_touched, write_json, write_table, write_toml,
};

/// Find the limit that would affect only the worst clients
///
/// Computes the peak of every client's recent average rate. A limit above a client's peak never affects
/// that client. The suggested limit lies in a gap between a few peaks and all others.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct SuggestArgs {
    #[command(flatten)]
    log: log::LogArgs,

    /// The time after which a request counts half; without it, 10s and 1m are tried, and the one under
    /// which more clients stand out is chosen
    #[arg(long, value_name = "TIME", value_parser = earrrl::internal::parse_duration)]
    half_life: Option<Duration>,

    /// The largest share of clients that the limit may affect [default: 5%, and at least one client]
    #[arg(long, value_name = "SHARE")]
    touch: Option<ClientShare>,

    /// The form of the output
    #[arg(long, value_name = "FORM", default_value = "table")]
    output: SuggestOutput,

    /// Print the rule as a server's configuration file instead
    #[arg(long, conflicts_with = "output")]
    config: bool,

    /// Draw the clients' peak rates: an SVG file
    #[arg(long, value_name = "FILE", value_parser = super::figure::file)]
    plot: Option<std::path::PathBuf>,
}

const EXAMPLE: &str = "\
Example:
  earrrl suggest access.log.gz
  earrrl suggest access.log.gz --half-life 1m --touch 0.1% --config > limits.toml";

/// The forms of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SuggestOutput {
    /// Half-lives, limits, and the clients that the suggested limit affects
    Table,
    /// The same as one JSON object
    Json,
}

/// The findings in the requests of a log.
struct Found {
    sweep: Sweep,
    judged: JudgedAdvice,
    /// The clients among which groups are looked for; `None` if no rule can be about a group.
    suspected: Option<Suspected>,
    parts: FoundParts,
}

/// Runs `earrrl suggest`.
pub(crate) fn run(args: SuggestArgs) -> Result<ExitCode, CliFailure> {
    for half_life in args.half_lives() {
        Peaks::of(half_life, std::iter::empty()).map_err(wrong)?;
    }
    if args.config {
        args.log.check_terms()?;
    }
    let mut reader = args.log.reader();
    let (rows, whole) = args.read(&mut reader)?;
    let found = args.found(&rows, &reader.clients)?;
    let counts = || {
        let mut counts = vec![0; reader.clients.len()];
        rows.requests()
            .for_each(|request| counts[request.client as usize] += 1);
        counts
    };
    log::warn_of_doubts(&reader, &args.log, counts);
    args.write(&mut reader, rows, found)?;
    log::warn_of_skipped_lines(&reader, &args.log);
    Ok(log::exit_code(&reader, whole))
}

impl SuggestArgs {
    /// Reads the logs. Returns the requests in the order of their times, and false if a log could
    /// not be read to its end.
    fn read(&self, reader: &mut LogReader) -> Result<(Rows, bool), CliFailure> {
        let mut rows = Rows::default();
        let whole = log::read(&self.log, reader, |_, requests| rows.extend(requests))?;
        rows.sort();
        Ok((rows, whole))
    }

    /// Measures the clients' rates and judges the limits that part the fastest from all others. What the clients do, and
    /// the rules for users and single paths, are found at the same time, on processors of their own.
    fn found(&self, rows: &Rows, clients: &ClientNumbers) -> Result<Found, CliFailure> {
        let counts_requests = rows.unit() == "requests";
        let fields = self.log.key.fields();
        // Rules for groups can have conditions on requests, and none on responses.
        let by_client = fields == [Field::Client];
        let groups = by_client && counts_requests && self.log.check_terms().is_ok();
        let is_narrow = fields
            .iter()
            .any(|field| matches!(field, Field::Path | Field::User));
        let wants_parts = counts_requests && self.log.conditions.is_empty() && !is_narrow;
        let half_lives = self.half_lives();
        let most = |clients: usize| most_touched(self.touch, clients);
        let measured = || {
            let mut sweep = Sweep::new(&half_lives, most, || rows.requests())?;
            sweep.spare(rows.crowds(&sweep)?);
            sweep.look_further(|| rows.requests())?;
            Ok(sweep)
        };
        thread::scope(|scope| {
            let suspected = groups.then(|| scope.spawn(|| rows.suspected(clients)));
            let parts = wants_parts.then(|| scope.spawn(|| rows.parts(&half_lives, &most)));
            let sweep = measured().map_err(wrong)?;
            let judged = judge(&sweep, rows.requests()).map_err(too_great)?;
            let parts = parts.map(joined).transpose().map_err(too_great)?;
            Ok(Found {
                sweep,
                judged,
                suspected: suspected.map(joined),
                parts: parts.unwrap_or_default(),
            })
        })
    }

    /// Writes the advice to standard output, and the figure of the peaks to the file of `--plot`.
    fn write(&self, reader: &mut LogReader, rows: Rows, found: Found) -> Result<(), CliFailure> {
        let Found {
            sweep,
            judged,
            suspected,
            parts,
        } = found;
        let clients = sweep.peaks().clients();
        let none = self.touch.filter(|share| share.of(clients) == 0).map(|_| {
            format!("the share that --touch allows is less than one of {clients} clients")
        });
        let unit = rows.unit();
        let terms = self.log.terms(unit == "requests");
        let further = judged.second.iter().flat_map(|(_, further)| further);
        let touched = judged.touched.iter().chain(further);
        let named = touched.clone().chain(&judged.below);
        let named = named.map(|client| client.number);
        let profiles = match unit {
            "requests" => Profiles::of(&rows, named),
            _ => self.log.profiles(reader, named),
        };
        let known = touched.map(|client| client.number);
        let parts = rows.rules(suspected.as_ref(), parts, &sweep, known);
        let parts = parts.map_err(too_great)?;
        let advice = Advice {
            sweep: &sweep,
            judged: &judged,
            profiles: &profiles,
            parts: &parts,
            reader,
            names: &ClientNames::new(self.log.anonymize),
            terms: &terms,
            most: none,
        };
        let mut out = BufWriter::new(io::stdout().lock());
        match self.output {
            _ if self.config => {
                if advice.has_no_rule() {
                    warn("no rule is suggested, so the configuration has none");
                }
                write_toml(&mut out, &advice)?;
            }
            SuggestOutput::Table => write_table(&mut out, &advice)?,
            SuggestOutput::Json => write_json(&mut out, &advice)?,
        }
        out.flush()?;
        if let Some(path) = &self.plot {
            let figure = figure(sweep.peaks(), &judged.suggested, unit);
            earrrl_logs::plot::save(&figure, path).map_err(CliFailure::new)?;
        }
        Ok(())
    }

    fn half_lives(&self) -> Vec<Duration> {
        let all = || HALF_LIVES.map(Duration::from_secs).to_vec();
        self.half_life.map_or_else(all, |half_life| vec![half_life])
    }
}

/// Returns the rules that `replay` tries if no rule is given, and reports which ones these are.
pub(super) fn advice(reader: &LogReader, held: &HeldBack) -> Result<Vec<Rule>, CliFailure> {
    let half_lives = HALF_LIVES.map(Duration::from_secs);
    let mut sweep = Sweep::new(
        &half_lives,
        |clients| most_touched(None, clients),
        || held.requests(),
    )
    .map_err(too_great)?;
    sweep.look_further(|| held.requests()).map_err(too_great)?;
    let judged = judge(&sweep, std::iter::empty()).map_err(too_great)?;
    let names = ClientNames::new(true);
    let advice = Advice {
        sweep: &sweep,
        judged: &judged,
        profiles: &Profiles::default(),
        parts: &PartRules::default(),
        reader,
        names: &names,
        terms: &RuleTerms::default(),
        most: None,
    };
    let suggested = &judged.suggested;
    let which = match sweep.gap() {
        Some(_) => "what `suggest` advises is tried",
        None => "twice the greatest peak is tried",
    };
    warn(&format!(
        "no --rule, so {which}: --rule '{}'. {}",
        suggested.rule,
        advice.reason()
    ));
    Ok(vec![suggested.rule.clone()])
}

/// Returns the result of a thread, or panics as it did.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Returns the error of a half-life that no rule can have, which names the field itself.
fn wrong(error: earrrl::RuleError) -> CliFailure {
    CliFailure::new(format!("--{error}"))
}

fn too_great(error: earrrl::RuleError) -> CliFailure {
    CliFailure::new(format!("no rule has a limit so great: {error}"))
}
