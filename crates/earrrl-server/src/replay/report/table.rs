//! The summary as text: a row a rule, then each rule's top offenders.

use std::io::{self, Write};

use super::{Summary, TOP, percent};
use crate::replay::trial::Trial;

/// Writes the summary.
pub(crate) fn write(out: &mut impl Write, summary: &Summary<'_>) -> io::Result<()> {
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

/// Columns flush right, the last one flush left.
fn write_rows<const N: usize>(
    out: &mut impl Write,
    indent: &str,
    rows: &[[String; N]],
) -> io::Result<()> {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in rows {
        write!(out, "{indent}")?;
        for (cell, width) in row.iter().zip(widths).take(N - 1) {
            write!(out, "{cell:>width$}  ")?;
        }
        writeln!(out, "{}", row[N - 1])?;
    }
    Ok(())
}
