//! `earrrl simulate`: made-up clients through rules.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use earrrl::Rule;

use super::CliFailure;
use earrrl_logs::simulate::{
    Client, Scenario, SimulatedOutcome, write_csv, write_html, write_table,
};

/// Simulate clients under rules
///
/// The same seed gives the same requests. Clients with the same name are one client whose requests change.
/// With workers=N, a client is N workers that share its key, each with the whole pattern.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct SimulateArgs {
    /// A rule, see below; may be given several times, each is tried on its own
    #[arg(long = "rule", value_name = "RULE", required = true)]
    rules: Vec<Rule>,

    /// A client: NAME, then steady RATE, random RATE or bursty N every=T [gap=T], then [from=T]
    /// [until=T] [cost=C] [retry=T | obey] [workers=N]; may be given several times
    #[arg(long = "client", value_name = "CLIENT", required = true)]
    clients: Vec<Client>,

    /// The time to simulate
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = earrrl_logs::text::parse_time)]
    duration: Duration,

    /// The seed of random clients
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    seed: u64,

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
    /// A page with the table and the figure
    Html,
}

/// Runs `earrrl simulate`.
pub(crate) fn run(args: SimulateArgs) -> Result<ExitCode, CliFailure> {
    let wrong = |error: earrrl::RuleError| CliFailure::new(error.to_string());
    let scenario = Scenario {
        rules: args.rules,
        clients: args.clients,
        duration: args.duration,
        seed: args.seed,
    };
    let outcomes = SimulatedOutcome::of(&scenario).map_err(wrong)?;
    let mut out = BufWriter::new(io::stdout().lock());
    match args.output {
        SimulateOutput::Table => write_table(&mut out, &scenario, &outcomes)?,
        SimulateOutput::Csv => write_csv(&mut out, &scenario)?,
        SimulateOutput::Html => write_html(&mut out, &scenario, &outcomes)?,
    }
    out.flush()?;
    if let Some(path) = &args.plot {
        let figure = earrrl_logs::simulate::figure(&scenario, &outcomes);
        earrrl_logs::plot::save(&figure, path).map_err(CliFailure::new)?;
    }
    Ok(ExitCode::SUCCESS)
}
