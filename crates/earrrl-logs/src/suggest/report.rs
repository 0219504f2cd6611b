//! Writes the suggested limit as a table, JSON and a figure.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::toml_rule::texts;
use super::{
    Group, JudgedAdvice, JudgedLimit, Mark, PartRules, Peaks, Profiles, RuleTerms, SeenClient,
    Sweep,
};
use crate::line::time::written;
use crate::line::{Escaped, shell_word};
use crate::plot::{Figure, Reached, distribution};
use crate::reading::{ClientNames, LogReader};
use crate::text::{counted, percent, printable_json, three_digits, write_rows};

/// The quantiles of the clients' peak rates that are reported, and their names.
const QUANTILES: [(f64, &str); 7] = [
    (0.5, "50 %"),
    (0.75, "75 %"),
    (0.9, "90 %"),
    (0.95, "95 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (1.0, "all"),
];

/// The greatest number of affected clients whose names are written.
const NAMED: usize = 20;

/// The unit of rates that are written together: its length in seconds, and its suffix in a rule.
struct RateUnit(f64, &'static str);

/// The percentage of the clients above which a limit is marked as affecting many.
const MANY: u64 = 1;

/// A suggested limit, and the measurements that it is based on.
pub struct Advice<'a> {
    /// The clients' peaks under each half-life that was tried.
    pub sweep: &'a Sweep,
    /// The limits under the chosen half-life, and the clients that they affect.
    pub judged: &'a JudgedAdvice,
    /// The profiles of the clients that the advice names.
    pub profiles: &'a Profiles,
    /// Rules for single paths, and for each user.
    pub parts: &'a PartRules,
    /// The reader of the log, with its counts of lines.
    pub reader: &'a LogReader,
    /// The names of the clients in the output.
    pub names: &'a ClientNames,
    /// The parts of the rule that follow from how the log was read.
    pub terms: &'a RuleTerms,
    /// A warning that the number of clients above the limit is a lower bound, with the reason; `None`
    /// if the number is exact.
    pub most: Option<String>,
}

impl Advice<'_> {
    /// Returns the suggested limit; `None` if no client stands out.
    pub fn suggested(&self) -> Option<&JudgedLimit> {
        self.sweep.gap().map(|_| &self.judged.suggested)
    }

    /// Returns true if no rule is suggested, not even for a path or for users.
    pub fn has_no_rule(&self) -> bool {
        self.suggested().is_none()
            && self.parts.groups.is_empty()
            && self.parts.paths.is_empty()
            && self.parts.user.is_none()
    }

    /// Returns the function that names a client.
    pub(super) fn name(&self) -> impl Fn(&u32) -> String {
        |&client| self.names.exact(&self.reader.clients, client).into_owned()
    }

    /// Returns a remark on a client that may need an exemption, or that tries many user names.
    fn remark(&self, client: u32) -> Option<String> {
        let tried = self
            .reader
            .formats
            .iter()
            .all(|format| format.has_tried_names());
        self.profiles.remark(client, tried, self.names.are_hidden())
    }

    /// Returns a sentence with the reason for the suggestion, or for making none.
    pub fn reason(&self) -> String {
        let half_life = duration(self.sweep.peaks().half_life);
        let clients = self.sweep.peaks().clients();
        let Some(gap) = self.sweep.gap() else {
            return match (&self.most, clients) {
                (_, 1) => "There is one client only, so nobody to compare it with.".into(),
                (Some(most), _) => format!("Nobody to stop: {most}."),
                _ => self.nobody(),
            };
        };
        let unit = RateUnit::of([gap.above, gap.below].into_iter());
        let tried = if self.sweep.tried.len() > 1 {
            " under which the most clients stand out,"
        } else {
            ""
        };
        format!(
            "With a half-life of {half_life},{tried} {} at {} or more, {} times the next one's \
             peak of {}.",
            match gap.clients {
                1 => "one client peaks".to_owned(),
                clients => format!("{clients} clients peak"),
            },
            unit.written(gap.above),
            three_digits(gap.ratio()),
            unit.written(gap.below),
        )
    }

    /// Returns a sentence about the half-lives under which no client stands out, and one about those
    /// under which some do.
    fn nobody(&self) -> String {
        let tried = self
            .sweep
            .tried
            .iter()
            .map(|(peaks, _)| duration(peaks.half_life));
        let tried = match &tried.collect::<Vec<_>>()[..] {
            [one] => format!("a half-life of {one}"),
            several => format!("half-lives of {}", several.join(" and ")),
        };
        let alone = match &self.parts.groups[..] {
            [] => "",
            _ => " alone",
        };
        let mut text = format!(
            "No client stands out{alone}: under {tried}, no few clients have peaks far above all others."
        );
        for (place, &(half_life, clients)) in self.sweep.elsewhere.iter().enumerate() {
            text.pop();
            text += if place == 0 { ". " } else { ", " };
            let clients = counted(clients as u64, "client");
            text += &format!(
                "`suggest --half-life {}` finds {clients}.",
                duration(half_life)
            );
        }
        text
    }
}

/// Writes the half-lives, the quantiles, the limits, and the suggestion with the clients that it
/// affects.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_table(out: &mut impl Write, advice: &Advice<'_>) -> io::Result<()> {
    let peaks = advice.sweep.peaks();
    let clients = peaks.clients() as u64;
    let requests = counted(peaks.requests, "request");
    writeln!(out, "{}, {requests}\n", counted(clients, "client"))?;
    write_sweep(out, advice.sweep)?;
    write_quantiles(out, peaks)?;
    write_limits(out, advice)?;
    writeln!(out, "\n{}", advice.reason())?;
    match advice.suggested() {
        Some(suggested) => write_suggested(out, advice, suggested)?,
        // Honest clients would stand between the reader and the groups.
        None if !advice.parts.groups.is_empty() => {}
        None => {
            writeln!(out, "\nThe fastest clients:\n")?;
            write_clients(out, advice, &advice.judged.below)?;
        }
    }
    write_parts(out, advice)
}

/// Writes the suggested rule, the clients that it affects, and what is to be known about them.
fn write_suggested(
    out: &mut impl Write,
    advice: &Advice<'_>,
    suggested: &JudgedLimit,
) -> io::Result<()> {
    let peaks = advice.sweep.peaks();
    let clients = peaks.clients() as u64;
    let intro = format!(
        "This limit touches {} ({}) and denies {} of the requests",
        counted(suggested.clients as u64, "client"),
        percent(suggested.clients as u64, clients),
        percent(suggested.requests, peaks.requests),
    );
    write_rule(out, &intro, &advice.terms.flags, suggested)?;
    write_clients(out, advice, &advice.judged.touched)?;
    if suggested.clients as u64 * 100 > clients * MANY {
        writeln!(
            out,
            "\nThat is more than {MANY} % of the clients: look at them before you enforce it, or allow fewer with \
             `--touch {MANY}%`."
        )?;
    }
    if let Some((limit, further)) = &advice.judged.second {
        let half_life = duration(limit.half_life);
        let count = counted(further.len() as u64, "further client");
        let intro =
            format!("A second rule, with a half-life of {half_life}, touches {count} beside it");
        write_rule(out, &intro, &advice.terms.flags, limit)?;
        write_clients(out, advice, further)?;
    }
    if !advice.judged.below.is_empty() {
        writeln!(out, "\nThe next below the limit:\n")?;
        write_clients(out, advice, &advice.judged.below)?;
    }
    let touched = advice.judged.touched.iter().map(|client| client.number);
    match advice.profiles.usual_path(touched) {
        Some(sentence) if !advice.terms.are_for_a_path() => writeln!(out, "\n{sentence}"),
        _ => Ok(()),
    }
}

/// Writes the rules for single paths and for users, and the clients that they affect.
fn write_parts(out: &mut impl Write, advice: &Advice<'_>) -> io::Result<()> {
    let PartRules {
        groups,
        paths,
        user,
        user_part,
        users,
    } = advice.parts;
    for (number, group) in (1..).zip(groups) {
        write_group(out, advice, group, number)?;
    }
    if !groups.is_empty() {
        writeln!(
            out,
            "\nTo check it, write the configuration, and try it on this log and on that of another day:\n\n    \
             earrrl suggest LOG --config > limits.toml\n    earrrl replay LOG --config limits.toml"
        )?;
    }
    for rule in paths {
        let path = Escaped(&rule.path);
        let clients = counted(rule.clients as u64, "client");
        let touched = counted(rule.judged.touched.len() as u64, "client");
        let condition = shell_word(&[b"path=", &rule.path[..]].concat());
        write_rule(
            out,
            &format!("A rule for {path} alone, which {clients} requested, touches {touched}"),
            &format!("--where {condition} "),
            &rule.judged.suggested,
        )?;
        write_clients(out, advice, &rule.judged.touched)?;
    }
    let Some(judged) = user else { return Ok(()) };
    let count = judged.touched.len() as u64;
    let (intro, flags) = match *user_part {
        "user" => ("A rule for each user".to_owned(), "--key user "),
        part => (
            format!("A rule for each API key, with `key = [\"{part}\"]`,"),
            "",
        ),
    };
    let touched = counted(count, if flags.is_empty() { "API key" } else { "user" });
    write_rule(
        out,
        &format!("{intro} touches {touched}"),
        flags,
        &judged.suggested,
    )?;
    let name = |user| advice.names.printable(users, user);
    write_named(out, &judged.touched, name)
}

/// Writes a sentence about a group of clients, and the rule that limits them.
fn write_group(
    out: &mut impl Write,
    advice: &Advice<'_>,
    group: &Group,
    number: usize,
) -> io::Result<()> {
    writeln!(
        out,
        "\n{}",
        group_sentence(group, advice.names.are_hidden())
    )?;
    writeln!(
        out,
        "This rule limits these {}, denies {} of the requests, and does not limit the {} other clients{}:\n",
        group.touched.len(),
        percent(group.limit.requests, group.requests),
        group.others,
        match group.exempt.len() {
            0 => String::new(),
            1 => ", one of which it exempts".to_owned(),
            some => format!(", {some} of which it exempts"),
        },
    )?;
    match advice.names.are_hidden() {
        true => writeln!(out, "    (it has their names, which `--anonymize` hides)"),
        false => {
            super::toml_rule::write_group(out, (group, number), advice.terms, advice.name(), "    ")
        }
    }
}

/// Returns a sentence about what a group did, and what its clients share.
fn group_sentence(group: &Group, hidden: bool) -> String {
    let (what, only) = match &group.paths[..] {
        [] if group.mark == Mark::Address => {
            let only = match group.failed * 2 >= group.sent {
                true => ", for paths that are missing and nobody else asks for",
                false => ", under the agents of browsers, but without the pages that lead there",
            };
            ("requests".to_owned(), only.to_owned())
        }
        [] => ("requests".to_owned(), String::new()),
        [path] => (format!("requests for {}", Escaped(path)), String::new()),
        [path, ..] => (
            "requests".to_owned(),
            format!(
                ", for {} paths such as {}",
                group.paths.len(),
                Escaped(path)
            ),
        ),
    };
    let agents: Vec<String> = group
        .agents
        .iter()
        .map(|agent| format!("`{}`", Escaped(agent)))
        .collect();
    let networks: Vec<String> = group
        .networks
        .iter()
        .take(6)
        .map(ToString::to_string)
        .collect();
    let more = match group.networks.len() - networks.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let agents = match &agents[..] {
        [] => String::new(),
        _ if hidden => format!(", with {}", counted(agents.len() as u64, "user agent")),
        [one] => format!(", with one user agent, {one}"),
        several => format!(
            ", with {} user agents, {}",
            several.len(),
            several.join(", ")
        ),
    };
    let networks = match (group.networks.len(), hidden) {
        (0, _) => String::new(),
        (count, true) => format!(
            ", {} of them in {}",
            group.in_networks,
            counted(count as u64, "network")
        ),
        (count, false) => format!(
            ", {} of them in {} ({}{more})",
            group.in_networks,
            counted(count as u64, "network"),
            networks.join(", ")
        ),
    };
    format!(
        "{} clients{only}{agents}{networks}, sent {} of the {} {what}; {} of theirs failed.",
        group.touched.len(),
        percent(group.sent, group.requests),
        group.requests,
        percent(group.failed, group.sent),
    )
}

/// Writes what a suggested rule does, and the rule with the flags that it needs.
fn write_rule(
    out: &mut impl Write,
    intro: &str,
    flags: &str,
    limit: &JudgedLimit,
) -> io::Result<()> {
    writeln!(out, "\n{intro}:\n\n    {flags}--rule '{}'\n", limit.rule)
}

fn write_sweep(out: &mut impl Write, sweep: &Sweep) -> io::Result<()> {
    let gaps = sweep.tried.iter().filter_map(|(_, gap)| *gap);
    let unit = RateUnit::of(gaps.flat_map(|gap| [gap.above, gap.below]));
    let header = [
        "half-life",
        "gap",
        "clients above",
        "they peak at",
        "the next at",
        "",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    for (place, (peaks, gap)) in sweep.tried.iter().enumerate() {
        let mut row = ["", "-", "-", "-", "-", ""].map(str::to_owned);
        row[0] = duration(peaks.half_life);
        if let Some(gap) = gap {
            row[1] = format!("{} times", three_digits(gap.ratio()));
            row[2] = gap.clients.to_string();
            row[3] = unit.written(gap.above);
            row[4] = unit.written(gap.below);
            row[5] = if place == sweep.chosen {
                "<- chosen"
            } else {
                ""
            }
            .into();
        }
        rows.push(row);
    }
    write_rows(out, "", &rows)?;
    writeln!(out)
}

fn write_quantiles(out: &mut impl Write, peaks: &Peaks) -> io::Result<()> {
    let descending = peaks.descending();
    let clients = descending.len();
    // The quantile is the least peak that at least this share of the clients does not exceed.
    let least = |quantile: f64| {
        let above = clients - ((quantile * clients as f64).ceil() as usize).clamp(1, clients);
        descending[above]
    };
    // The unit is chosen by the printed rates. The lowest rate of any client may need a far longer one.
    let unit = RateUnit::of(QUANTILES.iter().map(|(quantile, _)| least(*quantile)));
    let mut rows = vec![["clients", "recent average rate at its peak, at most"].map(str::to_owned)];
    for (quantile, share) in QUANTILES {
        rows.push([share.to_owned(), unit.written(least(quantile))]);
    }
    write_rows(out, "", &rows)?;
    writeln!(out)
}

fn write_limits(out: &mut impl Write, advice: &Advice<'_>) -> io::Result<()> {
    let peaks = advice.sweep.peaks();
    let clients = peaks.clients() as u64;
    let header = [
        "limit",
        "passes at once",
        "clients touched",
        "",
        "requests denied",
        "",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    let candidates = &advice.judged.limits;
    let rate = |judged: &JudgedLimit| judged.rate.per_second_f64();
    let unit = RateUnit::of(candidates.iter().map(rate));
    rows.extend(candidates.iter().map(|judged| {
        [
            unit.written(rate(judged)),
            judged.at_once.to_string(),
            judged.clients.to_string(),
            percent(judged.clients as u64, clients),
            judged.requests.to_string(),
            percent(judged.requests, peaks.requests),
        ]
    }));
    write_rows(out, "", &rows)
}

fn write_clients(
    out: &mut impl Write,
    advice: &Advice<'_>,
    clients: &[SeenClient],
) -> io::Result<()> {
    write_named(out, clients, |client| {
        let shown = advice.names.printable(&advice.reader.clients, client);
        match advice.remark(client) {
            Some(remark) => format!("{shown}  ({remark})"),
            None => shown,
        }
    })
}

/// Writes clients or users, whose names `shown` returns.
fn write_named(
    out: &mut impl Write,
    clients: &[SeenClient],
    shown: impl Fn(u32) -> String,
) -> io::Result<()> {
    let unit = RateUnit::of(clients.iter().map(|client| client.peak));
    let mut rows = vec![["peak", "requests", "first", "last", "client"].map(str::to_owned)];
    rows.extend(clients.iter().take(NAMED).map(|client| {
        [
            unit.written(client.peak),
            client.requests.to_string(),
            written(client.first),
            written(client.last),
            shown(client.number),
        ]
    }));
    write_rows(out, "  ", &rows)?;
    if clients.len() > NAMED {
        writeln!(out, "  and {} more", clients.len() - NAMED)?;
    }
    Ok(())
}

/// Writes the content of [`write_table`] as a JSON object.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_json(out: &mut impl Write, advice: &Advice<'_>) -> io::Result<()> {
    let peaks = advice.sweep.peaks();
    let half_lives = advice.sweep.tried.iter().map(|(peaks, gap)| {
        json!({
            "half_life": peaks.half_life.as_secs_f64(),
            "gap": gap.map(|gap| json!({
                "clients": gap.clients, "above": gap.above, "below": gap.below, "ratio": gap.ratio(),
            })),
        })
    });
    let JudgedAdvice {
        limits,
        suggested: _,
        touched,
        below,
        second,
    } = advice.judged;
    let PartRules {
        groups,
        paths,
        user,
        user_part,
        users,
    } = advice.parts;
    let with_touched = |judged: &JudgedLimit, touched: &[SeenClient]| {
        let mut object = judged_json(judged);
        object["touched"] = clients_json(advice, touched);
        object
    };
    let object = json!({
        "requests": peaks.requests,
        "clients": peaks.clients(),
        "half_lives": half_lives.collect::<Vec<_>>(),
        "limits": limits.iter().map(judged_json).collect::<Vec<_>>(),
        "reason": advice.reason(),
        "suggestion": advice.suggested().map(|judged| with_touched(judged, touched)),
        "second": second.as_ref().map(|(judged, further)| with_touched(judged, further)),
        "below": clients_json(advice, below),
        "groups": groups.iter().map(|group| group_json(advice, group)).collect::<Vec<_>>(),
        "paths": paths.iter().map(|rule| {
            let mut object = with_touched(&rule.judged.suggested, &rule.judged.touched);
            object["path"] = String::from_utf8_lossy(&rule.path).into();
            object
        }).collect::<Vec<_>>(),
        "user": user.as_ref().map(|judged| {
            let mut object = judged_json(&judged.suggested);
            object["key"] = (*user_part).into();
            let name = |user: &SeenClient| advice.names.exact(users, user.number);
            object["touched"] = judged.touched.iter().map(name).collect();
            object
        }),
    });
    writeln!(
        out,
        "{}",
        printable_json(serde_json::to_string_pretty(&object)?)
    )
}

fn group_json(advice: &Advice<'_>, group: &Group) -> Value {
    let names = |clients: &[u32]| -> Value { clients.iter().map(advice.name()).collect() };
    let hidden = advice.names.are_hidden();
    let mut object = judged_json(&group.limit);
    object["what"] = group_sentence(group, hidden).into();
    object["paths"] = texts(&group.paths).into();
    object["sent"] = group.sent.into();
    object["failed"] = group.failed.into();
    object["touched"] = names(&group.touched);
    object["exempt"] = names(&group.exempt);
    if !hidden {
        object["agents"] = texts(&group.agents).into();
        object["networks"] = group.networks.iter().map(ToString::to_string).collect();
    }
    object
}

fn judged_json(judged: &JudgedLimit) -> Value {
    json!({
        "rule": judged.rule.to_string(),
        "limit": judged.rate.per_second_f64(),
        "passes_at_once": judged.at_once,
        "clients": judged.clients,
        "requests": judged.requests,
    })
}

fn clients_json(advice: &Advice<'_>, clients: &[SeenClient]) -> Value {
    let object = |client: &SeenClient| {
        json!({
            "key": advice.names.exact(&advice.reader.clients, client.number),
            "peak": client.peak,
            "requests": client.requests,
            "first": client.first as f64 / 1e9,
            "last": client.last as f64 / 1e9,
            "remark": advice.remark(client.number),
        })
    };
    clients.iter().map(object).collect()
}

impl RateUnit {
    /// Returns the shortest unit in which none of the rates is below 0.1.
    fn of(rates: impl Iterator<Item = f64>) -> Self {
        let rates = rates.filter(|&rate| rate > 0.0);
        match rates.fold(f64::INFINITY, f64::min) {
            0.1.. => Self(1.0, "/s"),
            rate if rate * 60.0 >= 0.1 => Self(60.0, "/m"),
            rate if rate * 3600.0 >= 0.1 => Self(3600.0, "/h"),
            _ => Self(86_400.0, "/d"),
        }
    }

    fn written(&self, rate: f64) -> String {
        three_digits(rate * self.0) + self.1
    }
}

/// Writes a duration in the grammar of rules.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match (time.subsec_nanos(), seconds) {
        (0, 1..) if seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        (0, 1..) if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        _ => format!("{}s", time.as_secs_f64()),
    }
}

/// Draws how many clients reach each rate, and the suggested limit.
pub fn figure(peaks: &Peaks, suggested: &JudgedLimit, measure: &str) -> Figure {
    let reached = Reached {
        name: "clients".into(),
        label: format!("the suggested limit, {}", suggested.rate),
        peaks: peaks.descending(),
        limit: suggested.limit,
        above: suggested.clients,
    };
    let mut figure = distribution(&[reached], measure, (640, 400));
    figure.title = "Clients by the peak of their recent average rate".into();
    figure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unit_a_column() {
        let unit = |rates: &[f64]| RateUnit::of(rates.iter().copied()).1;
        assert_eq!(unit(&[5.0, 0.2]), "/s");
        assert_eq!(unit(&[5.0, 0.05, 0.0]), "/m");
        assert_eq!(unit(&[1e-9]), "/d");
        assert_eq!(unit(&[]), "/s");
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1234.5, "1234"),
            (123.46, "123"),
            (12.0, "12"),
            (10.04, "10"),
            (0.50, "0.5"),
            (0.01234, "0.0123"),
        ] {
            assert_eq!(three_digits(value), text);
        }
    }
}
