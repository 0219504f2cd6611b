//! Writes the summary of a replay as text: a row for each rule, then the clients that each rule
//! denied most.

use std::io::{self, Write};

use super::{Summary, TOP};
use crate::replay::Trial;
use crate::text::{percent, write_rows};

/// Writes the summary as text.
///
/// ```
/// # use earrrl_logs::reading::{HeldBack, LogReader, Selection};
/// # let selection = Selection {
/// #     format: None,
/// #     hints: Default::default(),
/// #     key: "client".parse()?,
/// #     prefixes: Default::default(),
/// #     costs: Default::default(),
/// #     filter: Default::default(),
/// # };
/// # let mut reader = LogReader::new(selection);
/// # let mut held = HeldBack::default();
/// # reader.read("../../testdata/logs/abuse.log.gz".as_ref(), |source| source, &mut |_, requests| held.extend(requests))?;
/// # held.sort();
/// # use earrrl_logs::{reading::ClientNames, replay::Replay, report::{self, Summary}};
/// # let mut replay = Replay::new(["fixed-window 60/1m".parse()?]).with_timeline();
/// # held.each(|requests| { replay.judge_all(requests); Ok::<(), std::io::Error>(()) })?;
/// # let names = ClientNames::new(false);
/// let summary = Summary { reader: &reader, replay: &replay, names: &names };
/// report::write_table(&mut std::io::stdout(), &summary)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write(out: &mut impl Write, summary: &Summary<'_>) -> io::Result<()> {
    let replay = summary.replay;
    let header = [
        "events",
        "clients",
        "denied",
        "limited",
        "share denied",
        "rule",
    ];
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
            summary
                .names
                .printable(&summary.reader.clients, offender.client),
        ]);
    }
    write_rows(out, "  ", &rows)
}
