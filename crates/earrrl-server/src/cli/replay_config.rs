//! `earrrl replay --config`: the answers that a server with this configuration would have given.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use earrrl_server::config::Config;
use serde_json::json;

use super::failure::{self, warn};
use super::progress::ReadProgress;
use super::replay::{ReplayArgs, ReplayOutput};
use super::stop::Stop;
use super::{CliFailure, log};
use crate::configured::{Configured, page, report};
use earrrl_logs::reading::{
    ClientNames, ClientNumbers, HeldBack, LogKey, LogReader, LoggedRequest,
};

/// Runs `earrrl replay --config`.
pub(super) fn run(args: &ReplayArgs, path: &Path) -> Result<ExitCode, CliFailure> {
    if args.output.is_list() {
        return Err(CliFailure::new(
            "lists of clients need a --rule: the rules of --config have several actions",
        ));
    }
    let config = Config::load_rules(path).map_err(|error| failure::lines(&error.to_string()))?;
    if config.rules.is_empty() {
        return Err(CliFailure::new(format!(
            "{}: no rule to try",
            path.display()
        )));
    }
    let mut configured =
        Configured::new(&config).map_err(|error| CliFailure::new(error.to_string()))?;
    if args.shows_time() {
        configured = configured.with_timeline();
    }
    let mut selection = args.log.selection();
    selection.key = LogKey::computed(std::sync::Arc::new(configured.attributes()));
    selection.prefixes = config.client_address.client_prefixes();
    let mut reader = LogReader::new(selection);
    let names = ClientNames::new(args.log.anonymize);
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let whole = decide_all(args, &mut reader, &mut configured, (&mut out, &names))?;
    match args.output {
        ReplayOutput::Table => report::write_table(&mut out, &configured, &names)?,
        ReplayOutput::Json => report::write_json(&mut out, (&reader, &configured, &names))?,
        ReplayOutput::Html => {
            page::write(&mut out, (&reader, &configured, &names), &args.origin())?
        }
        _ => {}
    }
    out.flush()?;
    if let (Some(path), Some(figure)) = (&args.plot, page::figure(&configured, super::replay::PLOT))
    {
        earrrl_logs::plot::save(&figure, path).map_err(CliFailure::new)?;
    }
    warn_of_differences(&reader, &configured);
    log::warn_of_skipped_lines(&reader, &args.log);
    Ok(log::exit_code(&reader, whole))
}

/// Decides all requests by the configuration; returns false if a log could not be read to its end.
fn decide_all(
    args: &ReplayArgs,
    reader: &mut LogReader,
    configured: &mut Configured,
    (out, names): (&mut impl Write, &ClientNames),
) -> Result<bool, CliFailure> {
    let lines = args.output == ReplayOutput::Jsonl;
    let mut take_one = |clients: &ClientNumbers, request: LoggedRequest| -> io::Result<()> {
        configured.decide(clients, request, |logged| match lines {
            true => {
                let client = logged.client.as_ref().map(|client| names.of(client));
                report::write_line(out, request.time, &logged, json!(client))
            }
            false => Ok(()),
        })
    };
    let mut take = |clients: &ClientNumbers, requests: &[LoggedRequest]| {
        requests
            .iter()
            .try_for_each(|&request| take_one(clients, request))
    };
    let progress = ReadProgress::of(&args.log.files);
    let stop = Stop::on_interrupt()?;
    let watch = (&progress, &stop);
    let whole = if args.is_in_order() {
        args.read(reader, watch, |clients, requests| take(clients, requests))?
    } else {
        let mut held = HeldBack::default();
        let whole = args.read(reader, watch, |_, r| held.extend(r))?;
        held.sort();
        held.each(|requests| take(&reader.clients, requests))?;
        whole
    };
    progress.clear();
    Ok(whole)
}

/// Warns of conditions under which a server's decisions would differ from these results.
fn warn_of_differences(reader: &LogReader, configured: &Configured) {
    if !reader.missing.is_empty() {
        let names = reader.missing.join(", ");
        warn(&format!(
            "the log does not have {names}; as in the server, a missing attribute is empty"
        ));
    }
    if let (invalid @ 1.., why) = &configured.invalid {
        warn(&format!(
            "{invalid} requests are invalid, and would get an error: {why}"
        ));
    }
}
