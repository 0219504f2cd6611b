//! The report of how a configuration decided the requests of a log, in each form of output.

use std::io::{self, Write};

use earrrl::Cost;
use serde_json::{Value, json};

use super::decisions::{ClientTally, Configured, RequestFate, RuleTally};
use earrrl_logs::reading::{ClientNames, LogReader};
use earrrl_logs::report::TOP;
use earrrl_logs::report::jsonl::write_figures;
use earrrl_logs::text::{percent, write_rows};

/// Writes a table with a row for all rules together and a row for each rule, and then lists each
/// rule's clients most often over the limit.
pub(crate) fn write_table(
    out: &mut impl Write,
    configured: &Configured,
    names: &ClientNames,
) -> io::Result<()> {
    let header = [
        "events",
        "clients",
        "over",
        "limited",
        "share over",
        "action",
        "rule",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    for tally in &configured.tallies {
        rows.push([
            tally.events.to_string(),
            tally.clients.len().to_string(),
            tally.over.to_string(),
            tally.limited().to_string(),
            percent(tally.over, tally.events),
            tally.action.to_owned(),
            format!("{}: {}", tally.name, tally.rule),
        ]);
    }
    write_rows(out, "", &rows)?;
    let denied = configured.denied;
    let events = configured.events;
    writeln!(
        out,
        "\nall together: {denied} of {events} not allowed ({})",
        percent(denied, events)
    )?;
    configured
        .tallies
        .iter()
        .try_for_each(|tally| write_worst(out, tally, names))
}

fn write_worst(out: &mut impl Write, tally: &RuleTally, names: &ClientNames) -> io::Result<()> {
    let worst = tally.worst(TOP);
    if worst.is_empty() {
        return writeln!(out, "\n{}: nobody is over the limit", tally.name);
    }
    writeln!(out, "\n{}: most often over the limit", tally.name)?;
    let mut rows = vec![["over", "events", "share over", "client"].map(str::to_owned)];
    rows.extend(worst.into_iter().map(|(client, seen)| {
        let ClientTally { requests, over, .. } = seen;
        let name = names.printable(&tally.clients, client);
        [
            over.to_string(),
            requests.to_string(),
            percent(over, requests),
            name,
        ]
    }));
    write_rows(out, "  ", &rows)
}

/// Writes the same report as one JSON object.
pub(crate) fn write_json(
    out: &mut impl Write,
    (reader, configured, names): (&LogReader, &Configured, &ClientNames),
) -> io::Result<()> {
    let rules: Vec<Value> = configured
        .tallies
        .iter()
        .map(|tally| {
            let top = tally.worst(TOP).into_iter().map(|(client, counted)| {
                let key = names.exact(&tally.clients, client);
                json!({"key": key, "events": counted.requests, "over": counted.over})
            });
            json!({
                "name": tally.name,
                "rule": tally.rule,
                "action": tally.action,
                "events": tally.events,
                "clients": tally.clients.len(),
                "over": tally.over,
                "clients_limited": tally.limited(),
                "top": top.collect::<Vec<_>>(),
            })
        })
        .collect();
    let object = json!({
        "lines": {"read": reader.lines, "used": reader.used(), "skipped": reader.skips.lines()},
        "events": configured.events,
        "denied": configured.denied,
        "invalid": configured.invalid.0,
        "rules": rules,
    });
    serde_json::to_writer_pretty(&mut *out, &object)?;
    writeln!(out)
}

/// Writes one line about the decision on one request. `client` is the client's name as the report
/// shows it.
pub(crate) fn write_line(
    out: &mut impl Write,
    time: u64,
    fate: &RequestFate<'_>,
    client: Value,
) -> io::Result<()> {
    write!(
        out,
        r#"{{"t":{},"key":{client},"rule":{},"#,
        Cost::from_billionths(time.into()),
        json!(fate.rule)
    )?;
    match fate.decision {
        Some(decision) => {
            write!(
                out,
                r#""allowed":{},"action":"{}","#,
                decision.allowed,
                decision.outcome.name()
            )?;
            write_figures(out, decision)
        }
        None => writeln!(
            out,
            r#""allowed":true,"action":"allow","rate":null,"remaining":null,"retry_after":0,"reset_after":0}}"#
        ),
    }
}
