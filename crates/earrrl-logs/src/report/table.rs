//! Writes the summary of a replay as text: a row for each rule, then the clients that each rule
//! denied most.

use std::io::{self, Write};

use super::{Summary, TOP};
use crate::replay::Trial;
use crate::text::{percent, write_rows};

/// Writes the summary as text.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write(out: &mut impl Write, summary: &Summary<'_>) -> io::Result<()> {
    let replay = summary.replay;
    let header = ["events", "clients", "denied", "limited", "share denied", "rule"];
    let mut rows = vec![header.map(str::to_owned)];
    for trial in &replay.trials {
        rows.push([
            replay.events.to_string(),
            summary.reader.clients.len().to_string(),
            trial.denied.to_string(),
            trial.clients_limited().to_string(),
            percent(trial.denied, replay.events),
            trial.rule.to_string(),
        ]);
    }
    write_rows(out, "", &rows)?;
    for trial in &replay.trials {
        writeln!(out)?;
        write_offenders(out, summary, trial)?;
    }
    Ok(())
}

fn write_offenders(out: &mut impl Write, summary: &Summary<'_>, trial: &Trial) -> io::Result<()> {
    let offenders = trial.offenders(TOP);
    if offenders.is_empty() {
        return writeln!(out, "{}: nobody is denied", trial.rule);
    }
    writeln!(out, "{}: most denied", trial.rule)?;
    let mut rows = vec![["denied", "events", "share denied", "client"].map(str::to_owned)];
    for offender in offenders {
        let requests = summary.replay.requests(offender.client);
        rows.push([
            offender.denied.to_string(),
            requests.to_string(),
            percent(offender.denied, requests),
            summary.names.printable(&summary.reader.clients, offender.client),
        ]);
    }
    write_rows(out, "  ", &rows)
}
