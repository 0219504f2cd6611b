//! The HTML page that reports how a configuration decided the requests of a log.

use std::io::{self, Write};

use super::decisions::{Configured, RuleTally};
use earrrl_logs::plot::Figure;
use earrrl_logs::reading::{ClientNames, LogReader};
use earrrl_logs::replay::Timeline;
use earrrl_logs::report::TOP;
use earrrl_logs::report::axis::over_time;
use earrrl_logs::report::page::{
    Origin, WIDE, share, when, write_end, write_for_all, write_start, write_table,
};
use earrrl_logs::text::{Html, counted, percent};

/// Draws a figure of two rates over time: all requests, and the requests that all rules together
/// allowed.
pub(crate) fn figure(configured: &Configured, size: (u32, u32)) -> Option<Figure> {
    let timeline = configured.timeline.as_ref()?;
    Some(together(timeline, size))
}

fn together(timeline: &Timeline, size: (u32, u32)) -> Figure {
    let permitted = [("permitted by all rules together".into(), 1, 0)];
    over_time(timeline, 0, &permitted, size)
}

/// Writes the HTML page.
pub(crate) fn write(
    out: &mut impl Write,
    (reader, configured, names): (&LogReader, &Configured, &ClientNames),
    origin: &Origin,
) -> io::Result<()> {
    let span = (configured.from, configured.until());
    let requests = counted(configured.events, "request");
    write_start(out, reader, (&requests, span), origin)?;
    let header = [
        "rule",
        "action",
        "requests",
        "over",
        "share over",
        "clients",
        "clients over",
    ];
    let rows = configured.tallies.iter().map(|tally| {
        vec![
            format!(
                "<b>{}</b>: {}",
                Html(tally.name.clone()),
                Html(tally.rule.clone())
            ),
            tally.action.to_owned(),
            tally.events.to_string(),
            tally.over.to_string(),
            share(tally.over, tally.events),
            tally.clients.len().to_string(),
            tally.limited().to_string(),
        ]
    });
    write_table(out, &header, rows)?;
    writeln!(
        out,
        "<h2>All rules together</h2>\n<p>{} of {} not allowed ({}).</p>",
        configured.denied,
        counted(configured.events, "request"),
        percent(configured.denied, configured.events),
    )?;
    if let Some(timeline) = &configured.timeline {
        write_for_all(out, WIDE, |size| together(timeline, size))?;
    }
    for (place, tally) in configured.tallies.iter().enumerate() {
        write_rule(out, (place, tally), configured, names)?;
    }
    write_end(out)
}

fn write_rule(
    out: &mut impl Write,
    (place, tally): (usize, &RuleTally),
    configured: &Configured,
    names: &ClientNames,
) -> io::Result<()> {
    writeln!(
        out,
        "<h2>{}: {}</h2>",
        Html(tally.name.clone()),
        Html(tally.rule.clone())
    )?;
    if let Some(timeline) = &configured.timeline {
        let within = [("within its limit".into(), 3 + 2 * place, place)];
        write_for_all(out, WIDE, |size| {
            over_time(timeline, 2 + 2 * place, &within, size)
        })?;
    }
    let worst = tally.worst(TOP);
    if worst.is_empty() {
        return writeln!(out, "<p>Nobody is over the limit.</p>");
    }
    let header = [
        "client",
        "requests",
        "over",
        "share over",
        "first over",
        "last over",
        "first seen",
        "last seen",
    ];
    let rows = worst.into_iter().map(|(client, counted)| {
        let times = [
            counted.limited.0,
            counted.limited.1,
            counted.seen.0,
            counted.seen.1,
        ];
        let mut row = vec![
            Html(names.printable(&tally.clients, client)).to_string(),
            counted.requests.to_string(),
            counted.over.to_string(),
            share(counted.over, counted.requests),
        ];
        row.extend(times.map(when));
        row
    });
    write_table(out, &header, rows)
}
