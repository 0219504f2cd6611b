//! One self-contained page: it loads nothing, runs nothing, and reads on a phone and in the dark.

use std::fmt::{self, Display};
use std::io::{self, Write};

use super::figures::{Axis, asked_and_permitted, rate_and_limit, rates};
use super::{Summary, TOP};
use crate::plot::{self, Figure};
use crate::replay::time;
use crate::replay::timeline::Timeline;
use crate::replay::trial::{Offender, Trial};
use crate::replay::{Held, Reader};
use crate::text::{counted, percent};

const STYLE: &str = include_str!("../../../assets/report.css");

/// Writes the report. The offenders are known only now, so the requests are gone through again.
pub(crate) fn write(
    out: &mut impl Write,
    summary: &Summary<'_>,
    timeline: &Timeline,
    held: &Held,
) -> io::Result<()> {
    let Summary { reader, replay, .. } = summary;
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Who would have been limited</title>\n<style>\n{STYLE}</style></head><body>\n\
         <h1>Who would have been limited</h1>\n\
         <p>{} of {}, {} to {} UTC.</p>\n\
         <p class=\"faint\">{} read, {} used, {} skipped{}.</p>\n",
        counted(replay.events, "request"),
        counted(reader.clients.len() as u64, "client"),
        time::written(replay.from.map_or(0, earrrl::Nanos::get)),
        time::written(replay.now.get()),
        counted(reader.lines, "line"),
        reader.used(),
        reader.skips.lines(),
        reasons(reader),
    )?;
    write_comparison(out, summary)?;
    let axis = Axis::new(timeline);
    for place in 0..replay.trials.len() {
        write_rule(out, summary, place, (&axis, timeline), held)?;
    }
    writeln!(out, "</body></html>")
}

/// Why lines were skipped, if any were.
fn reasons(reader: &Reader) -> String {
    let reasons =
        reader.skips.by_reason().map(|(skip, lines, _)| format!("{lines} {}", skip.reason()));
    let reasons: Vec<String> = reasons.collect();
    if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) }
}

fn write_comparison(out: &mut impl Write, summary: &Summary<'_>) -> io::Result<()> {
    writeln!(
        out,
        "<div class=\"scroll\"><table><thead><tr><th>rule</th><th>denied</th><th>share denied</th>\
         <th>clients limited</th></tr></thead><tbody>"
    )?;
    let events = summary.replay.events;
    for trial in &summary.replay.trials {
        let share = trial.denied as f64 / events.max(1) as f64 * 100.0;
        writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td><span class=\"share\"><i style=\"width:{share:.1}%\"></i>\
             </span>{}</td><td>{}</td></tr>",
            Html(trial.rule.to_string()),
            trial.denied,
            percent(trial.denied, events),
            trial.clients_limited(),
        )?;
    }
    writeln!(out, "</tbody></table></div>")
}

fn write_rule(
    out: &mut impl Write,
    summary: &Summary<'_>,
    place: usize,
    (axis, timeline): (&Axis<'_>, &Timeline),
    held: &Held,
) -> io::Result<()> {
    let trial = &summary.replay.trials[place];
    writeln!(out, "<h2>{}</h2>", Html(trial.rule.to_string()))?;
    writeln!(
        out,
        "<p>{} of {} denied, {} of {} limited.</p>",
        trial.denied,
        counted(summary.replay.events, "request"),
        trial.clients_limited(),
        counted(summary.reader.clients.len() as u64, "client"),
    )?;
    write_figure(out, &asked_and_permitted(axis, summary.replay, &[place], (440, 235)))?;
    let offenders = trial.offenders(TOP);
    if offenders.is_empty() {
        return writeln!(out, "<p>Nobody is denied.</p>");
    }
    let clients: Vec<u32> = offenders.iter().map(|offender| offender.client).collect();
    let rates = rates(&trial.rule, &clients, held.requests(), timeline);
    writeln!(out, "<div class=\"offenders\">")?;
    for (offender, rates) in offenders.iter().zip(rates) {
        write_offender(out, summary, trial, offender)?;
        write_figure(
            out,
            &rate_and_limit(axis, (&trial.rule, place), (&rates, held.unit()), (420, 170)),
        )?;
        writeln!(out, "</section>")?;
    }
    writeln!(out, "</div>")
}

fn write_offender(
    out: &mut impl Write,
    summary: &Summary<'_>,
    trial: &Trial,
    offender: &Offender,
) -> io::Result<()> {
    let requests = summary.replay.requests(offender.client);
    let asked = counted(requests, "request");
    let measured = if trial.measures() { "estimated rate" } else { "rate asked for" };
    writeln!(
        out,
        "<section><h3>{}</h3><p class=\"faint\">{} of {asked} denied ({}); {measured} (dashes: limit):</p>",
        Html(summary.names.printable(&summary.reader.clients, offender.client)),
        offender.denied,
        percent(offender.denied, requests),
    )
}

fn write_figure(out: &mut impl Write, figure: &Figure) -> io::Result<()> {
    let svg = plot::svg(figure, None).map_err(io::Error::other)?;
    // Inside a page an SVG has no declaration of its own.
    let start = svg.find("<svg").unwrap_or(0);
    writeln!(out, "{}", &svg[start..])
}

/// Text that is no markup, whatever a client has put into it.
struct Html(String);

impl Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c => write!(f, "{c}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_text() {
        let text = Html("<img src=x onerror='a'>&\"".into()).to_string();
        assert_eq!(text, "&lt;img src=x onerror=&#39;a&#39;&gt;&amp;&quot;");
    }
}
