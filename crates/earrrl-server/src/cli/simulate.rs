//! `earrrl simulate`: made-up clients through rules.

use std::io::{self, BufWriter, Read as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use earrrl::Rule;

use super::CliFailure;
use earrrl_logs::simulate::{Client, Scenario, SimulatedOutcome, write_csv, write_table};
use earrrl_logs::text::plain;

/// The size in bytes of the largest scenario file.
const MAX_SCENARIO: u64 = 1 << 20;

/// Simulate clients under rules
///
/// The same seed gives the same requests. Clients with the same name are one client whose requests change.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct SimulateArgs {
    /// A file with one `name = value` on each line: rule, client, duration, seed
    #[arg(value_name = "SCENARIO")]
    scenario: Option<PathBuf>,

    /// A rule, see below; may be given several times, each is tried on its own
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<Rule>,

    /// A client: NAME, then steady RATE, random RATE or bursty N every=T [gap=T], then [from=T]
    /// [until=T] [cost=C] [retry=T | obey]; may be given several times
    #[arg(long = "client", value_name = "CLIENT")]
    clients: Vec<Client>,

    /// The time to simulate; 300s by default
    #[arg(long, value_name = "TIME", value_parser = earrrl_logs::simulate::parse_time)]
    duration: Option<Duration>,

    /// The seed of random clients; 1 by default
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    seed: Option<u64>,

    /// The form of the output
    #[arg(long, value_name = "FORM", default_value = "table")]
    output: SimulateOutput,

    /// Draw the requested and the allowed rate into an SVG file
    #[arg(long, value_name = "FILE", value_parser = super::figure::file)]
    plot: Option<PathBuf>,
}

const EXAMPLE: &str = concat!(
    "\
Example:
  earrrl simulate --rule 'recent-average 1/s half-life=20s strict' --rule 'fixed-window 60/1m' \\
                  --client 'greedy steady 5/3s until=150s' --client 'greedy steady 1/s from=150s'",
    include_str!("rules.txt")
);

/// The forms of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SimulateOutput {
    /// One row for each rule and client
    Table,
    /// One line for each attempt
    Csv,
}

/// Runs `earrrl simulate`.
pub(crate) fn run(args: SimulateArgs) -> Result<ExitCode, CliFailure> {
    let wrong = |error: earrrl::RuleError| CliFailure::new(error.to_string());
    let scenario = args.scenario()?;
    let outcomes = SimulatedOutcome::of(&scenario).map_err(wrong)?;
    let mut out = BufWriter::new(io::stdout().lock());
    match args.output {
        SimulateOutput::Table => write_table(&mut out, &scenario, &outcomes)?,
        SimulateOutput::Csv => write_csv(&mut out, &scenario)?,
    }
    out.flush()?;
    if let Some(path) = &args.plot {
        let figure = earrrl_logs::simulate::figure(&scenario, &outcomes);
        earrrl_logs::plot::save(&figure, path).map_err(CliFailure::new)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl SimulateArgs {
    /// Returns the scenario of the file, with the values of the flags in place of its own.
    fn scenario(&self) -> Result<Scenario, CliFailure> {
        let file = self
            .scenario
            .as_deref()
            .map(read)
            .transpose()?
            .unwrap_or_default();
        let scenario = file.with(Scenario {
            rules: self.rules.clone(),
            clients: self.clients.clone(),
            duration: self.duration,
            seed: self.seed,
        });
        if scenario.rules.is_empty() || scenario.clients.is_empty() {
            return Err(CliFailure::new(
                "expected at least one --rule and one --client",
            ));
        }
        Ok(scenario)
    }
}

fn read(path: &std::path::Path) -> Result<Scenario, CliFailure> {
    let about = |problem: &str| CliFailure::new(format!("{}: {problem}", path.display()));
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| about(&plain(&error)))?;
    // Reads one byte more than allowed, to notice a file that is too long. A device reports no
    // length.
    let read = file.take(MAX_SCENARIO + 1).read_to_string(&mut text);
    read.map_err(|error| about(&plain(&error)))?;
    if text.len() as u64 > MAX_SCENARIO {
        return Err(about(&format!(
            "a scenario has at most {MAX_SCENARIO} bytes"
        )));
    }
    text.parse().map_err(|error: String| about(&error))
}
