//! `earrrl suggest`: which limit would touch only the worst.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

use super::failure::ERROR;
use super::progress::Progress;
use super::{Failure, log};
use crate::replay::{Held, Reader};
use crate::suggest::{Peaks, Share, judge, write};

/// Find the limit that would touch only the worst clients
///
/// Takes every client's recent average rate through the log and keeps its peak. A limit above a
/// client's peak never touches that client.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    log: log::LogArgs,

    /// The time in which a client's past comes to count half
    #[arg(long, value_name = "TIME", value_parser = earrrl::parse_duration)]
    half_life: Duration,

    /// The share of clients that the limit may touch
    #[arg(long, value_name = "SHARE", default_value = "1%")]
    touch: Share,

    /// Draw the clients' peak rates: a file that ends in .svg or .png
    #[arg(long, value_name = "FILE", value_parser = super::figure::file)]
    plot: Option<std::path::PathBuf>,
}

const EXAMPLE: &str = "\
Example:
  earrrl suggest access.log.gz --half-life 1m --touch 0.1%";

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // The error names the field itself.
    let wrong = |error: earrrl::RuleError| Failure::new(format!("--{error}"));
    let mut peaks = Peaks::new(args.half_life).map_err(wrong)?;
    let mut reader = Reader::new(args.log.selection());
    let progress = Progress::of(&args.log.files);
    let mut held = Held::default();
    let whole = log::read(&args.log, &mut reader, &progress, |_, request| held.push(request))?;
    progress.clear();
    held.sort();
    for request in held.requests() {
        peaks.add(request);
    }
    let judged = judge(&peaks, args.half_life, args.touch, held.requests());
    let judged =
        judged.map_err(|error| Failure::new(format!("no rule has a limit so great: {error}")))?;
    let mut out = BufWriter::new(io::stdout().lock());
    write(&mut out, &peaks, &judged, args.touch)?;
    out.flush()?;
    if let Some(path) = &args.plot {
        let figure = crate::suggest::figure(&peaks, &judged, held.unit());
        crate::plot::save(&figure, path).map_err(Failure::new)?;
    }
    log::tell_doubts(&reader, &args.log);
    log::tell_skipped(&reader, &args.log);
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(ERROR) })
}
