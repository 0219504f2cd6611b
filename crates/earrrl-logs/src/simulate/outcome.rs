//! The results of a simulation: the requests of each client, and those that each rule permitted.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use earrrl::{Rule, RuleError};

use super::client::Client;
use super::run::{Attempt, run};
use crate::plot::{Across, Figure, GREY, Panel, Series, Stroke};
use crate::report::page;
use crate::text::{Html, csv_field, percent, write_rows};

/// Rules, and the clients that are simulated under each of them.
///
/// ```
/// use earrrl_logs::simulate::Scenario;
/// use std::time::Duration;
///
/// let scenario = Scenario {
///     rules: vec!["fixed-window 60/1m".parse()?],
///     clients: vec!["alice steady 2/s".parse()?],
///     duration: Duration::from_secs(60),
///     seed: 1,
/// };
/// # let _ = scenario;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The rules, each of which is tried separately.
    pub rules: Vec<Rule>,
    /// The simulated clients. Those with the same name are one client, whose requests change.
    pub clients: Vec<Client>,
    /// The simulated time.
    pub duration: Duration,
    /// The seed of the clients' random numbers.
    pub seed: u64,
}

impl Scenario {
    fn run(&self, rule: &Rule, each: impl FnMut(&Attempt<'_>)) -> Result<(), RuleError> {
        run(rule, &self.clients, self.seed, self.duration, each)
    }
}

/// The counts of one client under one rule, and the times of the first and the last denial in seconds.
#[derive(Debug, Clone, Default)]
struct ClientTally {
    asked: u64,
    permitted: u64,
    denied: Option<(f64, f64)>,
    /// The number of permitted requests of each worker that has sent one.
    workers: BTreeMap<usize, u64>,
}

impl ClientTally {
    fn add(&mut self, attempt: &Attempt<'_>) {
        let time = seconds(attempt);
        let allowed = attempt.decision.allowed;
        self.asked += 1;
        self.permitted += u64::from(allowed);
        *self.workers.entry(attempt.worker).or_default() += u64::from(allowed);
        if !allowed {
            let (first, _) = self.denied.unwrap_or((time, time));
            self.denied = Some((first, time));
        }
    }

    /// Returns the number of requests that were permitted to the worker that got least; `None` for a
    /// client of one worker.
    fn least_worker(&self, client: &Client) -> Option<u64> {
        let least = self.workers.values().min().copied();
        least.filter(|_| client.workers > 1)
    }
}

/// Returns the time of an attempt in seconds.
fn seconds(attempt: &Attempt<'_>) -> f64 {
    attempt.time.get() as f64 / 1e9
}

/// The results of all clients under one rule.
///
/// ```
/// # use earrrl_logs::simulate::{Scenario, SimulatedOutcome};
/// # let scenario = Scenario {
/// #     rules: vec!["fixed-window 60/1m".parse()?],
/// #     clients: vec!["alice steady 2/s".parse()?],
/// #     duration: std::time::Duration::from_secs(60),
/// #     seed: 1,
/// # };
/// for outcome in SimulatedOutcome::of(&scenario)? {
///     earrrl_logs::simulate::write_table(&mut std::io::stdout(), &scenario, &[outcome])?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SimulatedOutcome {
    rule: Rule,
    tallies: Vec<ClientTally>,
    /// The time of each attempt in seconds, and whether it was permitted.
    attempts: Vec<(f64, bool)>,
}

impl SimulatedOutcome {
    /// Runs a scenario under each of its rules.
    ///
    /// # Errors
    /// Returns an error if the scenario has too many requests.
    pub fn of(scenario: &Scenario) -> Result<Vec<Self>, RuleError> {
        scenario
            .rules
            .iter()
            .map(|rule| Self::of_rule(scenario, rule))
            .collect()
    }

    fn of_rule(scenario: &Scenario, rule: &Rule) -> Result<Self, RuleError> {
        let mut tallies = vec![ClientTally::default(); scenario.clients.len()];
        let mut attempts = Vec::new();
        scenario.run(rule, |attempt| {
            tallies[attempt.client].add(attempt);
            attempts.push((seconds(attempt), attempt.decision.allowed));
        })?;
        Ok(Self {
            rule: rule.clone(),
            tallies,
            attempts,
        })
    }

    fn row(&self, client: &Client, tally: &ClientTally) -> [String; HEADER.len()] {
        let time = |time: Option<f64>| time.map_or("-".into(), |time| format!("{time:.3} s"));
        let least = tally.least_worker(client);
        [
            tally.asked.to_string(),
            tally.permitted.to_string(),
            percent(tally.permitted, tally.asked),
            time(tally.denied.map(|denied| denied.0)),
            time(tally.denied.map(|denied| denied.1)),
            least.map_or("-".into(), |least| least.to_string()),
            client.name.clone(),
            self.rule.limit().at_once().to_string(),
            self.rule.to_string(),
        ]
    }

    /// Returns a step curve of the number of requests up to each second: of all, or of the
    /// permitted only.
    fn cumulative(&self, permitted_only: bool, end: f64) -> Vec<(f64, f64)> {
        let mut count = 0.0;
        let mut points = vec![(0.0, 0.0)];
        for &(time, allowed) in &self.attempts {
            if allowed || !permitted_only {
                points.push((time, count));
                count += 1.0;
                points.push((time, count));
            }
        }
        points.push((end, count));
        points
    }
}

/// Writes a row for each rule and client. The column "least worker" is the number of requests that
/// were permitted to the worker that got least; "at once" is the number that the rule lets through
/// at once.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_table(
    out: &mut impl Write,
    scenario: &Scenario,
    outcomes: &[SimulatedOutcome],
) -> io::Result<()> {
    let mut all = vec![HEADER.map(str::to_owned)];
    all.extend(rows(scenario, outcomes));
    write_rows(out, "", &all)
}

const HEADER: [&str; 9] = [
    "asked",
    "permitted",
    "share",
    "first denied",
    "last denied",
    "least worker",
    "client",
    "at once",
    "rule",
];

/// Returns the cells below [`HEADER`].
fn rows(
    scenario: &Scenario,
    outcomes: &[SimulatedOutcome],
) -> impl Iterator<Item = [String; HEADER.len()]> {
    outcomes.iter().flat_map(|outcome| {
        // A client with several phases has one tally, under its first phase. The other phases have
        // none.
        let tallies = scenario.clients.iter().zip(&outcome.tallies);
        let asked = tallies.filter(|(_, tally)| tally.asked > 0);
        asked.map(|(client, tally)| outcome.row(client, tally))
    })
}

/// Writes an HTML page with the figure and the table.
///
/// ```
/// # use earrrl_logs::simulate::Scenario;
/// # let scenario = Scenario {
/// #     rules: vec!["fixed-window 60/1m".parse()?],
/// #     clients: vec!["office steady 1/s obey workers=5".parse()?],
/// #     duration: std::time::Duration::from_secs(60),
/// #     seed: 1,
/// # };
/// # use earrrl_logs::simulate::{SimulatedOutcome, write_html};
/// let mut page = Vec::new();
/// write_html(&mut page, &scenario, &SimulatedOutcome::of(&scenario)?)?;
/// assert!(page.starts_with(b"<!doctype html>"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_html(
    out: &mut impl Write,
    scenario: &Scenario,
    outcomes: &[SimulatedOutcome],
) -> io::Result<()> {
    page::write_head(out, "Simulated clients")?;
    page::write_figure(out, &figure(scenario, outcomes))?;
    // The last column comes first, since the first one of a page's table is the name of its row.
    let turned = |mut row: [String; HEADER.len()]| {
        row.rotate_right(1);
        row.map(|cell| Html(cell).to_string()).to_vec()
    };
    let header = turned(HEADER.map(str::to_owned));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    page::write_table(out, &header, rows(scenario, outcomes).map(turned))?;
    page::write_end(out)
}

/// Writes a line for each attempt, in order, one rule after the other.
///
/// ```
/// # use earrrl_logs::simulate::Scenario;
/// # let scenario = Scenario {
/// #     rules: vec!["fixed-window 60/1m".parse()?],
/// #     clients: vec!["alice steady 2/s".parse()?],
/// #     duration: std::time::Duration::from_secs(60),
/// #     seed: 1,
/// # };
/// let mut csv = Vec::new();
/// earrrl_logs::simulate::write_csv(&mut csv, &scenario)?;
/// assert!(csv.starts_with(b"rule,time,client,cost,allowed,rate,remaining,retry_after\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error, or an error if the scenario has too many requests.
pub fn write_csv(out: &mut impl Write, scenario: &Scenario) -> io::Result<()> {
    writeln!(
        out,
        "rule,time,client,cost,allowed,rate,remaining,retry_after"
    )?;
    for rule in &scenario.rules {
        let mut written = Ok(());
        let each = |attempt: &Attempt<'_>| {
            let name = &scenario.clients[attempt.client].name;
            let decision = attempt.decision;
            let rate = decision
                .rate
                .map(|rate| rate.to_string())
                .unwrap_or_default();
            let wait = decision.retry_after.duration();
            let wait = wait.map_or("never".into(), |wait| wait.as_secs_f64().to_string());
            if written.is_ok() {
                written = writeln!(
                    out,
                    "{},{},{},{},{},{rate},{},{wait}",
                    csv_field(&rule.to_string()),
                    seconds(attempt),
                    csv_field(name),
                    attempt.cost,
                    decision.allowed,
                    decision.remaining,
                );
            }
        };
        let run = scenario.run(rule, each);
        run.map_err(|error| io::Error::other(error.to_string()))?;
        written?;
    }
    Ok(())
}

/// Draws the number of requests asked and permitted up to each instant under every rule. The legend
/// has the final numbers.
///
/// ```
/// # use earrrl_logs::simulate::{Scenario, SimulatedOutcome};
/// # let scenario = Scenario {
/// #     rules: vec!["fixed-window 60/1m".parse()?],
/// #     clients: vec!["alice steady 2/s".parse()?],
/// #     duration: std::time::Duration::from_secs(60),
/// #     seed: 1,
/// # };
/// let outcomes = SimulatedOutcome::of(&scenario)?;
/// let figure = earrrl_logs::simulate::figure(&scenario, &outcomes);
/// assert!(earrrl_logs::plot::svg(&figure).starts_with("<svg"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn figure(scenario: &Scenario, outcomes: &[SimulatedOutcome]) -> Figure {
    let end = scenario.duration.as_secs_f64();
    // Clients that react to denials send different requests under each rule.
    let asked: Vec<usize> = outcomes
        .iter()
        .map(|outcome| outcome.attempts.len())
        .collect();
    let alike = asked.windows(2).all(|pair| pair[0] == pair[1]);
    let mut series = Vec::new();
    for (place, outcome) in outcomes.iter().enumerate() {
        let [asked, permitted] = [false, true].map(|only| outcome.cumulative(only, end));
        let count = |points: &[(f64, f64)]| points.last().map_or(0.0, |point| point.1);
        if place == 0 || !alike {
            let (name, colour) = match alike {
                true => (format!("{} asked", count(&asked)), GREY),
                false => (
                    format!("{} asked under {}", count(&asked), outcome.rule),
                    place,
                ),
            };
            series.push(Series::new(name, colour, asked).with_stroke(Stroke::Dashed));
        }
        let name = format!("{} permitted by {}", count(&permitted), outcome.rule);
        series.push(Series::new(name, place, permitted));
    }
    let panel = Panel {
        y_label: "requests so far".into(),
        series,
        ..Panel::default()
    };
    Figure {
        title: "Requests asked and permitted".into(),
        x: Across::seconds(end),
        panels: vec![panel],
        size: (640, 440),
    }
}
