//! Writes the summary of a replay: as text, with a row for each rule and then the clients that each rule
//! denied most, and as one JSON object.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Summary, TOP};
use crate::replay::Trial;
use crate::text::{percent, printable_json, write_rows};

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
pub fn write_table(out: &mut impl Write, summary: &Summary<'_>) -> io::Result<()> {
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

// Writes the summary of a replay as a JSON object.

/// Writes the summary as a JSON object.
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
/// let mut json = Vec::new();
/// report::write_json(&mut json, &summary)?;
/// assert!(json.starts_with(b"{"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_json(out: &mut impl Write, summary: &Summary<'_>) -> io::Result<()> {
    let Summary {
        reader,
        replay,
        names,
    } = summary;
    let skipped: Vec<Value> = reader
        .skips
        .by_reason()
        .map(|(skip, lines, examples)| {
            let shown = examples.iter().map(|example| {
                let text = (!names.are_hidden()).then_some(&example.text);
                json!({"place": example.place, "line": text})
            });
            json!({"reason": skip.reason(), "lines": lines, "examples": shown.collect::<Vec<_>>()})
        })
        .collect();
    let formats: Vec<_> = reader.formats.iter().map(|format| format.name()).collect();
    let rules: Vec<Value> = replay
        .trials
        .iter()
        .map(|trial| rule(summary, trial))
        .collect();
    let object = json!({
        "lines": {
            "read": reader.lines,
            "used": reader.used(),
            "skipped": reader.skips.lines(),
            "skipped_by_reason": skipped,
        },
        "formats": formats,
        "events": replay.events,
        "clients": reader.clients.len(),
        "from": replay.from.map(|time| time.get() as f64 / 1e9),
        "to": replay.from.map(|_| replay.now.get() as f64 / 1e9),
        "rules": rules,
    });
    writeln!(
        out,
        "{}",
        printable_json(serde_json::to_string_pretty(&object)?)
    )
}

fn rule(summary: &Summary<'_>, trial: &Trial) -> Value {
    let Summary {
        reader,
        replay,
        names,
    } = summary;
    let top = trial.offenders(TOP).into_iter().map(|offender| {
        json!({
            "key": names.exact(&reader.clients, offender.client),
            "events": replay.requests(offender.client),
            "denied": offender.denied,
        })
    });
    json!({
        "rule": trial.rule.to_string(),
        "events": replay.events,
        "clients": reader.clients.len(),
        "denied": trial.denied,
        "clients_limited": trial.clients_limited(),
        "share_denied": trial.denied as f64 / replay.events.max(1) as f64,
        "top": top.collect::<Vec<_>>(),
    })
}
