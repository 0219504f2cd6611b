//! The report of a replay as an HTML page: all rules side by side, then for each rule the clients
//! that it denied most.

use std::io::{self, Write};

use earrrl::Nanos;

use super::axis::{over_time, written_rate};
use super::measured::MeasuredRule;
use super::page::{HALF, WIDE, share, write_end, write_figure, write_start, write_table};
use super::{Summary, TOP};
use crate::line::time;
use crate::plot::{Reached, distribution};
use crate::reading::HeldBack;
use crate::replay::{Offender, Timeline, Trial};
use crate::text::{Html, counted, percent, three_digits};

/// Writes the HTML report. It iterates over the requests again, since the most denied clients are
/// known only after the replay.
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
/// let timeline = replay.timeline.as_ref().ok_or("no timeline")?;
/// let mut page = Vec::new();
/// report::write_html(&mut page, &summary, timeline, &held)?;
/// assert!(page.starts_with(b"<!doctype html>"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write(
    out: &mut impl Write,
    summary: &Summary<'_>,
    timeline: &Timeline,
    held: &HeldBack,
) -> io::Result<()> {
    let replay = summary.replay;
    let from = replay.from.map_or(0, Nanos::get);
    write_start(out, summary.reader, replay.events, (from, replay.now.get()))?;
    write_comparison(out, summary)?;
    let rules = replay.trials.iter().map(|trial| &trial.rule);
    let measured: Vec<MeasuredRule> = rules
        .map(|rule| MeasuredRule::of(rule, held.requests()))
        .collect();
    writeln!(
        out,
        "<h2>Clients by their peak rate</h2>\n<p class=\"faint\">As each rule measures it if it stops \
         nobody; a bucket measures no rate, so an average of its rate and burst stands for it. A rule \
         limits those right of its dashes.</p>"
    )?;
    let reached = replay.trials.iter().zip(&measured);
    let reached = reached.map(|(trial, measured)| Reached {
        name: trial.rule.to_string(),
        peaks: measured.peaks(),
        limit: trial.rule.limit().per_second(),
        above: trial.clients_limited(),
    });
    let reached: Vec<Reached> = reached.collect();
    write_figure(out, &distribution(&reached, held.unit(), WIDE))?;
    for (place, measured) in measured.iter().enumerate() {
        write_rule(out, summary, (place, measured), timeline, held)?;
    }
    write_end(out)
}

fn write_comparison(out: &mut impl Write, summary: &Summary<'_>) -> io::Result<()> {
    let events = summary.replay.events;
    let rows = summary.replay.trials.iter().map(|trial| {
        let limited = trial.clients_limited().to_string();
        let rule = Html(trial.rule.to_string()).to_string();
        vec![
            rule,
            trial.denied.to_string(),
            share(trial.denied, events),
            limited,
        ]
    });
    write_table(
        out,
        &["rule", "denied", "share denied", "clients limited"],
        rows,
    )
}

fn write_rule(
    out: &mut impl Write,
    summary: &Summary<'_>,
    (place, measured): (usize, &MeasuredRule),
    timeline: &Timeline,
    held: &HeldBack,
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
    write_figure(
        out,
        &over_time(timeline, 0, &[("permitted".into(), place + 1, place)], WIDE),
    )?;
    let offenders = trial.offenders(TOP);
    if offenders.is_empty() {
        return writeln!(out, "<p>Nobody is denied.</p>");
    }
    let incidents = incidents(trial, &offenders, held);
    writeln!(
        out,
        "<p class=\"faint\">Below: the requests of the most denied, and those that the rule permits.</p>"
    )?;
    writeln!(out, "<div class=\"offenders\">")?;
    for (offender, incident) in offenders.iter().zip(&incidents) {
        write_offender(out, summary, (place, measured), offender, incident)?;
        let permitted = [("permitted".into(), 1, place)];
        write_figure(out, &over_time(&incident.timeline, 0, &permitted, HALF))?;
        writeln!(out, "</section>")?;
    }
    writeln!(out, "</div>")
}

/// The requests of one client over time, and the times of its first and last denial, in nanoseconds since the
/// epoch.
struct Incident {
    timeline: Timeline,
    denied: (u64, u64),
}

/// Judges the requests of these clients again, to count them over time.
fn incidents(trial: &Trial, offenders: &[Offender], held: &HeldBack) -> Vec<Incident> {
    let mut again = Trial::new(trial.rule.clone());
    let incident = |_: &Offender| Incident {
        timeline: Timeline::new(1),
        denied: (u64::MAX, 0),
    };
    let mut incidents: Vec<Incident> = offenders.iter().map(incident).collect();
    let place = |client| {
        offenders
            .iter()
            .position(|offender| offender.client == client)
    };
    for request in held.requests() {
        let Some(place) = place(request.client) else {
            continue;
        };
        let Incident { timeline, denied } = &mut incidents[place];
        let allowed = again.judge(request.client, Nanos::new(request.time), request.cost);
        let counts = timeline.at(request.time);
        counts[0] += 1;
        counts[1] += u64::from(allowed);
        if !allowed {
            *denied = (denied.0.min(request.time), request.time);
        }
    }
    incidents
}

fn write_offender(
    out: &mut impl Write,
    summary: &Summary<'_>,
    (place, measured): (usize, &MeasuredRule),
    offender: &Offender,
    incident: &Incident,
) -> io::Result<()> {
    let trial = &summary.replay.trials[place];
    let requests = summary.replay.requests(offender.client);
    let client = measured.client(offender.client);
    let (peak, at) = client.peak;
    writeln!(
        out,
        "<section><h3>{}</h3>\n<p>{} of {} denied ({}), {} to {}.<br>Peak {}, {} times the limit, at {}.\
         <br>First seen {}, last seen {}.</p>",
        Html(
            summary
                .names
                .printable(&summary.reader.clients, offender.client)
        ),
        offender.denied,
        counted(requests, "request"),
        percent(offender.denied, requests),
        time::written(incident.denied.0),
        time::written(incident.denied.1),
        written_rate(peak),
        three_digits(peak / trial.rule.limit().per_second()),
        time::written(at),
        time::written(client.first),
        time::written(client.last),
    )
}
