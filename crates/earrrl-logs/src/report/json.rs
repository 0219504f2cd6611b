//! Writes the summary of a replay as a JSON object.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Summary, TOP};
use crate::replay::Trial;
use crate::text::printable_json;

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
pub fn write(out: &mut impl Write, summary: &Summary<'_>) -> io::Result<()> {
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
