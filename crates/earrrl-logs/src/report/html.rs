//! The report of a replay as an HTML page: what happened, who it was, what the rules would have done, what that would
//! have cost others, and what to do now.

use std::io::{self, Write};

use super::axis::{over_time, written_rate};
use super::limited::{self, Limited};
use super::measured::MeasuredRule;
use super::page::{
    HALF, Origin, WIDE, share, when, write_end, write_for_all, write_start, write_table,
};
use super::{Summary, TOP};
use crate::plot::{Reached, distribution};
use crate::reading::HeldBack;
use crate::replay::{Timeline, Trial};
use crate::suggest::{Profiles, network_of};
use crate::text::{Html, counted, percent, three_digits};

/// The most names of clients and networks that a group shows.
const NAMED: usize = 5;

/// The parts of the report that the log's requests do not tell.
pub struct Context<'a> {
    /// The command that writes the report.
    pub origin: Origin,
    /// The profiles of the clients that rules limited.
    pub profiles: &'a Profiles,
    /// Returns a rule as a server's configuration has it; `None` if no rule can have the key, the conditions and the
    /// costs of the command.
    pub config: Option<&'a dyn Fn(&earrrl::Rule) -> String>,
}

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
/// use earrrl_logs::{report::{HtmlContext, page::Origin}, suggest::Profiles};
/// let summary = Summary { reader: &reader, replay: &replay, names: &names };
/// let timeline = replay.timeline.as_ref().ok_or("no timeline")?;
/// let mut page = Vec::new();
/// let context = HtmlContext { origin: Origin::default(), profiles: &Profiles::default(), config: None };
/// report::write_html(&mut page, &summary, (timeline, &held), &context)?;
/// assert!(page.starts_with(b"<!doctype html>"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write(
    out: &mut impl Write,
    summary: &Summary<'_>,
    (timeline, held): (&Timeline, &HeldBack),
    context: &Context<'_>,
) -> io::Result<()> {
    let replay = summary.replay;
    let from = replay.from.map_or(0, earrrl::Nanos::get);
    let span = (from, replay.now.get());
    let requests = counted(replay.events, "request");
    let clients = counted(summary.reader.clients.len() as u64, "client");
    let requests = format!("{requests} of {clients}");
    write_start(out, summary.reader, (&requests, span), &context.origin)?;
    let measured = replay
        .trials
        .iter()
        .map(|trial| MeasuredRule::of(&trial.rule, held.requests()));
    let measured: Vec<MeasuredRule> = measured.collect();
    let worst = limited::worst(summary, context.profiles, held);
    write_worst(out, summary, &worst, &measured, context)?;
    write_rules(out, summary, timeline)?;
    write_cost(out, summary, &worst, context)?;
    write_peaks(out, summary, &measured, held.unit())?;
    write_advice(out, &replay.trials, context)?;
    write_end(out)
}

/// Writes who was limited, the worst first.
fn write_worst(
    out: &mut impl Write,
    summary: &Summary<'_>,
    worst: &[Limited],
    measured: &[MeasuredRule],
    context: &Context<'_>,
) -> io::Result<()> {
    writeln!(out, "<h2>Who it was</h2>")?;
    if worst.is_empty() {
        return writeln!(out, "<p>The rules limit nobody.</p>");
    }
    writeln!(
        out,
        "<p class=\"faint\">{} of {}, the most denied first. More than {TOP} clients with the same path and user agent, or of \
         one network, are one group. The figures show what they asked for, and what the rule that denied them most \
         permitted.</p>\n<div class=\"offenders\">",
        worst.len().min(TOP),
        worst.len(),
    )?;
    for one in worst.iter().take(TOP) {
        write_limited(out, summary, one, &measured[one.rule], context)?;
    }
    writeln!(out, "</div>")
}

fn write_limited(
    out: &mut impl Write,
    summary: &Summary<'_>,
    one: &Limited,
    measured: &MeasuredRule,
    context: &Context<'_>,
) -> io::Result<()> {
    let rule = &summary.replay.trials[one.rule].rule;
    let name =
        |&client: &u32| Html(summary.names.printable(&summary.reader.clients, client)).to_string();
    let title = match &one.clients[..] {
        [client] => name(client),
        clients => format!("{} clients alike", clients.len()),
    };
    let by = match summary.replay.trials.len() {
        1 => String::new(),
        _ => format!(" by {}", Html(rule.to_string())),
    };
    let histories = || one.clients.iter().map(|&client| measured.client(client));
    let (peak, at) = histories()
        .map(|history| history.peak)
        .fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a });
    let first = histories().map(|history| history.first).min().unwrap_or(0);
    let last = histories().map(|history| history.last).max().unwrap_or(0);
    writeln!(
        out,
        "<section><h3>{title}</h3>\n<p>{} of {} denied ({}){by}, {} to {}.<br>Peak {}, {} times the limit, at {}.\
         <br>First seen {}, last seen {}.</p>\n<dl>",
        one.denied,
        counted(one.requests, "request"),
        percent(one.denied, one.requests),
        when(one.span.0),
        when(one.span.1),
        written_rate(peak),
        three_digits(peak / rule.limit().per_second()),
        when(at),
        when(first),
        when(last),
    )?;
    let mut facts = context
        .profiles
        .usual(&one.clients, summary.names.are_hidden());
    if !summary.names.are_hidden() {
        facts.extend(networks(summary, one));
    }
    for (term, fact) in facts {
        writeln!(out, "<dt>{term}</dt><dd>{}</dd>", Html(fact))?;
    }
    if one.clients.len() > 1 {
        let names: Vec<String> = one.clients.iter().take(NAMED).map(name).collect();
        let more = one.clients.len() - names.len();
        writeln!(
            out,
            "<dt>clients</dt><dd>{} and {more} more</dd>",
            names.join(", ")
        )?;
    }
    writeln!(out, "</dl>")?;
    let permitted = [("permitted".to_owned(), 1, one.rule)];
    write_for_all(out, HALF, |size| {
        over_time(&one.timeline, 0, &permitted, size)
    })?;
    writeln!(out, "</section>")
}

/// Returns the networks of most of the clients.
fn networks(summary: &Summary<'_>, one: &Limited) -> Option<(&'static str, String)> {
    let key = |&client: &u32| network_of(summary.reader.clients.key(client));
    let mut counts = std::collections::BTreeMap::<_, usize>::new();
    one.clients
        .iter()
        .filter_map(key)
        .for_each(|network| *counts.entry(network).or_default() += 1);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let more = counts.len().saturating_sub(NAMED);
    let shown = counts
        .iter()
        .take(NAMED)
        .map(|(network, count)| match one.clients.len() {
            1 => network.to_string(),
            _ => format!("{network} ({count})"),
        });
    let shown: Vec<String> = shown.collect();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    (!shown.is_empty()).then(|| ("networks", shown.join(", ") + &more))
}

/// Writes what each rule would have done.
fn write_rules(out: &mut impl Write, summary: &Summary<'_>, timeline: &Timeline) -> io::Result<()> {
    let trials = &summary.replay.trials;
    let events = summary.replay.events;
    writeln!(
        out,
        "<h2>What the {} would have done</h2>",
        if trials.len() == 1 { "rule" } else { "rules" }
    )?;
    let rows = trials.iter().map(|trial| {
        vec![
            Html(trial.rule.to_string()).to_string(),
            trial.denied.to_string(),
            share(trial.denied, events),
            trial.clients_limited().to_string(),
        ]
    });
    write_table(
        out,
        &["rule", "denied", "share denied", "clients limited"],
        rows,
    )?;
    for (place, trial) in trials.iter().enumerate() {
        let permitted = [("permitted".to_owned(), place + 1, place)];
        writeln!(out, "<h3>{}</h3>", Html(trial.rule.to_string()))?;
        write_for_all(out, WIDE, |size| over_time(timeline, 0, &permitted, size))?;
    }
    Ok(())
}

/// Writes what the rules would have cost clients that are probably no abusers.
fn write_cost(
    out: &mut impl Write,
    summary: &Summary<'_>,
    worst: &[Limited],
    context: &Context<'_>,
) -> io::Result<()> {
    let replay = summary.replay;
    let clients = summary.reader.clients.len();
    writeln!(
        out,
        "<h2>What it would have cost others</h2>\n<p>A client that loses less than half of its requests is probably \
         no abuser, unless it is one of many that are alike.</p>"
    )?;
    let rows = replay.trials.iter().map(|trial| {
        let lost = little(summary, trial);
        vec![
            Html(trial.rule.to_string()).to_string(),
            (clients - trial.clients_limited()).to_string(),
            lost.len().to_string(),
            lost.iter().map(|one| one.denied).sum::<u64>().to_string(),
        ]
    });
    let header = [
        "rule",
        "clients not limited",
        "clients that lose less than half",
        "requests that these lose",
    ];
    write_table(out, &header, rows)?;
    let tried = summary
        .reader
        .formats
        .iter()
        .all(|format| format.has_tried_names());
    let mut remarks = Vec::new();
    let groups: Vec<&Limited> = worst.iter().filter(|one| one.clients.len() > 1).collect();
    for (client, rule) in limited::limited(replay) {
        let denied = replay.trials[rule].denied_of(client);
        let requests = replay.requests(client);
        let remark = context
            .profiles
            .remark(client, tried, summary.names.are_hidden());
        // A group is described above, and its clients are alike, so none of them is an exception.
        let is_alike = groups.iter().any(|group| group.clients.contains(&client));
        if remark.is_some() || denied * 2 < requests && !is_alike {
            let name = Html(summary.names.printable(&summary.reader.clients, client));
            let remark = Html(remark.unwrap_or_default()).to_string();
            let counts = [denied, requests].map(|count| count.to_string());
            remarks.push([vec![name.to_string()], counts.to_vec(), vec![remark]].concat());
        }
    }
    if remarks.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "<p>Look at limited clients before you enforce a rule, here {} of {}:</p>",
        remarks.len().min(TOP),
        remarks.len(),
    )?;
    let header = ["client", "denied", "requests", "remark"];
    write_table(out, &header, remarks.into_iter().take(TOP))
}

/// Returns the clients that lose less than half of their requests under a rule.
fn little(summary: &Summary<'_>, trial: &Trial) -> Vec<crate::replay::Offender> {
    let mut lost = trial.offenders(usize::MAX);
    lost.retain(|one| one.denied * 2 < summary.replay.requests(one.client));
    lost
}

/// Writes how far each client is from each limit.
fn write_peaks(
    out: &mut impl Write,
    summary: &Summary<'_>,
    measured: &[MeasuredRule],
    unit: &str,
) -> io::Result<()> {
    writeln!(
        out,
        "<h3>Clients by their peak rate</h3>\n<p class=\"faint\">As each rule measures it if it stops \
         nobody; a bucket measures no rate, so an average of its rate and burst stands for it. A rule \
         limits those right of its dashes.</p>"
    )?;
    let reached = summary
        .replay
        .trials
        .iter()
        .zip(measured)
        .map(|(trial, measured)| Reached {
            name: trial.rule.to_string(),
            label: trial.rule.to_string(),
            peaks: measured.peaks(),
            limit: trial.rule.limit().per_second(),
            above: trial.clients_limited(),
        });
    let reached: Vec<Reached> = reached.collect();
    write_for_all(out, WIDE, |size| distribution(&reached, unit, size))
}

/// Writes the commands for the first rule that limits somebody.
fn write_advice(out: &mut impl Write, trials: &[Trial], context: &Context<'_>) -> io::Result<()> {
    writeln!(out, "<h2>What to do now</h2>")?;
    let origin = &context.origin;
    let files = Html(origin.files()).to_string();
    let Some(trial) = trials.iter().find(|trial| trial.denied > 0) else {
        return writeln!(
            out,
            "<p>Look for a limit:</p>\n<pre>earrrl suggest {files}</pre>"
        );
    };
    let rule = &trial.rule;
    let again =
        |rest: &str| Html(format!("{} --rule '{rule}'{rest}", origin.without_forms())).to_string();
    writeln!(
        out,
        "<ol>\n<li>Try the rule on the log of another day: <pre>{}</pre></li>\n\
         <li>Many clients alike share a network or a user agent, which a rule can name. Look for it: \
         <pre>earrrl suggest {files}</pre></li>",
        Html(format!("earrrl replay OTHER-DAY.log --rule '{rule}'")),
    )?;
    if let Some(config) = context.config {
        writeln!(
            out,
            "<li>Write the rule into the server's configuration, here <code>limits.toml</code>: <pre>{}</pre> and try \
             that: <pre>earrrl config check limits.toml\nearrrl replay {files} --config limits.toml</pre></li>",
            Html(config(rule)),
        )?;
    }
    writeln!(
        out,
        "<li>Or block the addresses that lost at least half of their requests, for an hour, in nginx with \
         <code>include deny.conf;</code>: <pre>{}\nnginx -s reload</pre> or in the firewall: \
         <pre>{}\nnft -f limited.nft</pre></li>\n</ol>",
        again(" --output nginx-deny > deny.conf"),
        again(" --output nft > limited.nft"),
    )
}
