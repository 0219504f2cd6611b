//! `earrrl replay --config`: the answers that a server with this configuration would have given.
//!
//! The requests of a log are decided with the code that serves requests. Each line is a request with its attributes.
//! All rules that match a request judge it together, and it is counted only if all of them allow it.

use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use earrrl::{Cost, EngineError, ManualClock, Mode, Nanos};
use earrrl_logs::reading::{
    ClientNames, ClientNumbers, HeldBack, LogKey, LogReader, LoggedRequest,
};
use earrrl_logs::replay::Timeline;
use earrrl_logs::report::jsonl::write_figures;
use earrrl_logs::report::{TOP, over_time};
use earrrl_logs::text::{percent, write_rows};
use earrrl_server::config::{Config, EngineConfig};
use earrrl_server::service::Service;
use earrrl_server::service::answer::Answer;
use earrrl_server::service::attributes::Attributes;
use earrrl_server::service::key::split;
use earrrl_server::service::rule::ActiveRule;
use earrrl_server::service::rules::ActiveRules;
use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::attributes::AttributeNames;
use super::failure::{self, warn};
use super::replay::{PLOT, ReplayArgs, ReplayOutput};
use super::{CliFailure, log};

/// Runs `earrrl replay --config`.
pub(super) fn run(args: &ReplayArgs, path: &Path) -> Result<ExitCode, CliFailure> {
    if args.output.is_list() {
        return Err(CliFailure::new(
            "lists of clients need a --rule: the rules of --config have several actions",
        ));
    }
    if args.output == ReplayOutput::Html {
        return Err(CliFailure::new(
            "html needs a --rule; of --config there are a table, JSON and a figure (--plot)",
        ));
    }
    let config = Config::load_rules(path).map_err(|error| failure::lines(&error.to_string()))?;
    if config.rules.is_empty() {
        let path = path.display();
        return Err(CliFailure::new(format!("{path}: no rule to try")));
    }
    let failed = |error: EngineError| CliFailure::new(error.to_string());
    let mut run = Run::new(config, args).map_err(failed)?;
    let mut selection = args.log.selection();
    selection.key = LogKey::computed(Arc::clone(&run.attributes) as _);
    selection.prefixes = run.rules.reading.client_address.client_prefixes();
    let mut reader = LogReader::new(selection);
    let whole = run.read(args, &mut reader)?;
    match args.output {
        ReplayOutput::Table => run.write_table()?,
        ReplayOutput::Json => run.write_json(&reader)?,
        _ => {}
    }
    run.out.flush()?;
    if let Some(path) = &args.plot {
        let permitted = [("permitted by all rules together".to_owned(), 1, 0)];
        let figure = over_time(&run.timeline, 0, &permitted, PLOT);
        earrrl_logs::plot::save(&figure, path).map_err(CliFailure::new)?;
    }
    run.warn_of_differences(&reader);
    log::warn_of_skipped_lines(&reader, &args.log);
    Ok(log::exit_code(&reader, whole))
}

/// A configuration under which a log is replayed, the results so far, and the output.
struct Run {
    service: Service,
    clock: Arc<ManualClock>,
    rules: Arc<ActiveRules>,
    /// The attributes that the rules read from a line.
    attributes: Arc<AttributeNames>,
    now: u64,
    /// The tally of each rule, in the order of the configuration.
    tallies: Vec<RuleTally>,
    /// The number of requests that were replayed.
    events: u64,
    /// The number of requests that the rules together did not allow.
    denied: u64,
    /// The number of all requests and of the allowed ones over time.
    timeline: Timeline,
    /// The number of requests that a server would reject as invalid, and the reason for the first.
    invalid: (u64, String),
    /// True if each decision is written.
    writes_lines: bool,
    names: ClientNames,
    out: BufWriter<StdoutLock<'static>>,
}

/// The results of one rule.
struct RuleTally {
    /// The name of the rule.
    name: String,
    /// The limit of the rule, as text.
    rule: String,
    /// The action of the rule when its limit is exceeded.
    action: &'static str,
    /// The number of requests that the rule judged.
    events: u64,
    /// The number of requests that exceeded the rule's limit.
    over: u64,
    /// The clients that the rule judged, numbered by their keys.
    clients: ClientNumbers,
    /// The results of the clients, by client number.
    counts: Vec<ClientTally>,
}

/// The results of one client under one rule.
#[derive(Clone, Copy, Default)]
struct ClientTally {
    /// The number of the client's requests that the rule judged.
    requests: u64,
    /// The number of the client's requests that exceeded the limit.
    over: u64,
}

impl Run {
    /// Prepares to replay a log. The states of clients are kept in memory, even if the configuration names a Redis.
    fn new(mut config: Config, args: &ReplayArgs) -> Result<Self, EngineError> {
        let clock = Arc::new(ManualClock::new(Nanos::ZERO));
        config.engine = EngineConfig::default();
        let service = Service::new(&config, clock.clone())?;
        let rules = Arc::clone(&service.rules());
        Ok(Self {
            attributes: Arc::new(AttributeNames::of(&rules)),
            tallies: rules.iter().map(RuleTally::new).collect(),
            service,
            clock,
            rules,
            now: 0,
            events: 0,
            denied: 0,
            timeline: Timeline::new(1),
            invalid: (0, String::new()),
            writes_lines: args.output == ReplayOutput::Jsonl,
            names: ClientNames::new(args.log.anonymize),
            out: BufWriter::with_capacity(1 << 16, io::stdout().lock()),
        })
    }

    /// Decides all requests; returns false if a log could not be read to its end.
    fn read(&mut self, args: &ReplayArgs, reader: &mut LogReader) -> Result<bool, CliFailure> {
        if args.is_in_order() {
            return args.read(reader, |clients, requests| {
                self.decide_all(clients, requests)
            });
        }
        let mut held = HeldBack::default();
        let whole = args.read(reader, |_, requests| held.extend(requests))?;
        held.sort();
        held.each(|requests| self.decide_all(&reader.clients, requests))?;
        Ok(whole)
    }

    fn decide_all(
        &mut self,
        clients: &ClientNumbers,
        requests: &[LoggedRequest],
    ) -> io::Result<()> {
        let mut requests = requests.iter();
        requests.try_for_each(|request| self.decide(clients.key(request.client), request.time))
    }

    /// Decides the request whose attributes are in `key`.
    fn decide(&mut self, key: &[u8], time: u64) -> io::Result<()> {
        self.events += 1;
        // An earlier time leaves the clock as it is, since a server's time never goes back.
        self.now = self.now.max(time);
        self.clock.set(Nanos::new(self.now));
        let rules = Arc::clone(&self.rules);
        let read = Arc::clone(&self.attributes);
        let attributes = Attributes::new(read.pairs(key), &rules.reading);
        // The engine in memory never waits, so one poll is enough.
        let answer = self
            .service
            .ask_matching(&rules, &attributes, Mode::Check.into())
            .now_or_never();
        let answer = match answer.map(Answer::judged) {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => {
                self.invalid.0 += 1;
                if self.invalid.0 == 1 {
                    self.invalid.1 = error.to_string();
                }
                return Ok(());
            }
            None => return Ok(()),
        };
        self.count(&attributes, &answer);
        match self.writes_lines {
            true => self.write_line(time, &attributes, &answer),
            false => Ok(()),
        }
    }

    fn count(&mut self, attributes: &Attributes<'_>, answer: &Answer<'_>) {
        let denied = u64::from(answer.is_over());
        self.denied += denied;
        let row = self.timeline.at(self.now);
        row[0] += 1;
        row[1] += 1 - denied;
        for charged in &answer.charged {
            let name = charged.rule.name.as_bytes();
            let Some((at, rule)) = self.rules.position(name).zip(self.rules.get(name)) else {
                continue;
            };
            let key = rule.key(attributes);
            let parts = split(&key, rule.config.key.len()).unwrap_or_default();
            self.tallies[at].add(&parts.join(&b','), charged.is_over());
        }
    }

    /// Writes one line about the decision on one request.
    fn write_line(
        &mut self,
        time: u64,
        attributes: &Attributes<'_>,
        answer: &Answer<'_>,
    ) -> io::Result<()> {
        let out = &mut self.out;
        // The client's address is found as the server finds it.
        let client = attributes.get("client").map(String::from_utf8_lossy);
        let client = json!(client.map(|client| self.names.of(&client)));
        let rule = json!(answer.deciding().map(|charged| &charged.rule.name));
        let time = Cost::from_billionths(time.into());
        write!(out, r#"{{"t":{time},"key":{client},"rule":{rule},"#)?;
        match &answer.decision {
            Some(decision) => {
                let allowed = decision.allowed;
                let action = decision.outcome.name();
                write!(out, r#""allowed":{allowed},"action":"{action}","#)?;
                write_figures(out, decision)
            }
            None => writeln!(
                out,
                r#""allowed":true,"action":"allow","rate":null,"remaining":null,"retry_after":0,"reset_after":0}}"#
            ),
        }
    }

    /// Warns of conditions under which a server's decisions would differ from these results.
    fn warn_of_differences(&self, reader: &LogReader) {
        if !reader.missing.is_empty() {
            let names = reader.missing.join(", ");
            warn(&format!(
                "the log does not have {names}; as in the server, a missing attribute is empty"
            ));
        }
        if let (invalid @ 1.., why) = &self.invalid {
            warn(&format!(
                "{invalid} requests are invalid, and would get an error: {why}"
            ));
        }
    }

    /// Writes a table with a row for all rules together and a row for each rule, and then lists each
    /// rule's clients most often over the limit.
    fn write_table(&mut self) -> io::Result<()> {
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
        rows.extend(self.tallies.iter().map(|tally| {
            [
                tally.events.to_string(),
                tally.clients.len().to_string(),
                tally.over.to_string(),
                tally.limited().to_string(),
                percent(tally.over, tally.events),
                tally.action.to_owned(),
                format!("{}: {}", tally.name, tally.rule),
            ]
        }));
        write_rows(&mut self.out, "", &rows)?;
        let Self { denied, events, .. } = *self;
        let share = percent(denied, events);
        writeln!(
            self.out,
            "\nall together: {denied} of {events} not allowed ({share})"
        )?;
        for tally in &self.tallies {
            tally.write_worst(&mut self.out, &self.names)?;
        }
        Ok(())
    }

    /// Writes the same report as one JSON object.
    fn write_json(&mut self, reader: &LogReader) -> io::Result<()> {
        let rules = self.tallies.iter().map(|tally| tally.json(&self.names));
        let object = json!({
            "lines": {"read": reader.lines, "used": reader.used(), "skipped": reader.skips.lines()},
            "events": self.events,
            "denied": self.denied,
            "invalid": self.invalid.0,
            "rules": rules.collect::<Vec<_>>(),
        });
        serde_json::to_writer_pretty(&mut self.out, &object)?;
        writeln!(self.out)
    }
}

impl RuleTally {
    fn new(rule: &ActiveRule) -> Self {
        Self {
            name: rule.name.clone(),
            rule: rule.own.rule.to_string(),
            action: rule.action_name(),
            events: 0,
            over: 0,
            clients: ClientNumbers::new(),
            counts: Vec::new(),
        }
    }

    fn add(&mut self, key: &[u8], over: bool) {
        let over = u64::from(over);
        self.events += 1;
        self.over += over;
        let Some(client) = self.clients.number(key) else {
            return;
        };
        if client as usize == self.counts.len() {
            self.counts.push(ClientTally::default());
        }
        let counted = &mut self.counts[client as usize];
        counted.requests += 1;
        counted.over += over;
    }

    /// Returns the number of clients that exceeded the rule's limit at least once.
    fn limited(&self) -> usize {
        self.counts
            .iter()
            .filter(|counted| counted.over > 0)
            .count()
    }

    /// Returns the clients that exceeded the rule's limit most often. Among clients with
    /// equal counts, those seen first come first.
    fn worst(&self) -> Vec<(u32, ClientTally)> {
        let counts = (0u32..).zip(self.counts.iter().copied());
        let mut worst: Vec<_> = counts.filter(|(_, counted)| counted.over > 0).collect();
        worst.sort_by_key(|(_, counted)| std::cmp::Reverse(counted.over));
        worst.truncate(TOP);
        worst
    }

    fn write_worst(&self, out: &mut impl Write, names: &ClientNames) -> io::Result<()> {
        let worst = self.worst();
        if worst.is_empty() {
            return writeln!(out, "\n{}: nobody is over the limit", self.name);
        }
        writeln!(out, "\n{}: most often over the limit", self.name)?;
        let mut rows = vec![["over", "events", "share over", "client"].map(str::to_owned)];
        rows.extend(worst.into_iter().map(|(client, counted)| {
            [
                counted.over.to_string(),
                counted.requests.to_string(),
                percent(counted.over, counted.requests),
                names.printable(&self.clients, client),
            ]
        }));
        write_rows(out, "  ", &rows)
    }

    fn json(&self, names: &ClientNames) -> Value {
        let top = self.worst().into_iter().map(|(client, counted)| {
            let key = names.exact(&self.clients, client);
            json!({"key": key, "events": counted.requests, "over": counted.over})
        });
        json!({
            "name": self.name,
            "rule": self.rule,
            "action": self.action,
            "events": self.events,
            "clients": self.clients.len(),
            "over": self.over,
            "clients_limited": self.limited(),
            "top": top.collect::<Vec<_>>(),
        })
    }
}
