//! The clients that rules limited, the worst first, with their requests over time. More than ten that are alike are one
//! group.

use std::collections::BTreeMap;

use earrrl::Nanos;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::{Summary, TOP};
use crate::reading::HeldBack;
use crate::replay::{Offender, Replay, Timeline, Trial};
use crate::suggest::{Profiles, network_of};

/// The most limited clients that are compared with each other.
const COMPARED: usize = 1000;

/// A client that rules limited, or a group of such clients.
pub(super) struct Limited {
    pub clients: Vec<u32>,
    /// The index of the rule that denied them most.
    pub rule: usize,
    pub requests: u64,
    /// The number of requests that this rule denied.
    pub denied: u64,
    /// The requests asked, and those that the rule permitted.
    pub timeline: Timeline,
    /// The times of the first and the last denial, in nanoseconds since the epoch.
    pub span: (u64, u64),
}

/// Returns the clients that each rule denied most, each once, with the rule that denied it most.
pub fn limited(replay: &Replay) -> Vec<(u32, usize)> {
    let mut worst: BTreeMap<u32, (u64, usize)> = BTreeMap::new();
    for (rule, trial) in replay.trials.iter().enumerate() {
        for Offender { client, denied } in trial.offenders(COMPARED) {
            let most = worst.entry(client).or_default();
            if denied > most.0 {
                *most = (denied, rule);
            }
        }
    }
    let mut worst: Vec<_> = worst.into_iter().collect();
    worst.sort_by_key(|&(_, (denied, _))| std::cmp::Reverse(denied));
    worst.truncate(COMPARED);
    worst
        .into_iter()
        .map(|(client, (_, rule))| (client, rule))
        .collect()
}

/// Finds the limited clients and groups, the worst first.
pub(super) fn worst(summary: &Summary<'_>, profiles: &Profiles, held: &HeldBack) -> Vec<Limited> {
    let replay = summary.replay;
    let single = |(client, rule)| Limited {
        clients: vec![client],
        rule,
        requests: 0,
        denied: 0,
        timeline: Timeline::new(1),
        span: (u64::MAX, 0),
    };
    let singles = limited(replay).into_iter().map(single).collect();
    let key = |client| summary.reader.clients.key(client);
    let mut all = join(singles, |client| profiles.habit(client));
    all = join(all, |client| Some(network_of(key(client))?.to_string()));
    count(&mut all, &replay.trials, held);
    all.sort_by_key(|one| std::cmp::Reverse(one.denied));
    all
}

/// Joins single clients that are alike to a group if they are more than ten.
fn join(all: Vec<Limited>, likeness: impl Fn(u32) -> Option<String>) -> Vec<Limited> {
    let mut alike: BTreeMap<String, Vec<Limited>> = BTreeMap::new();
    let mut joined = Vec::new();
    for one in all {
        let is_single = one.clients.len() == 1;
        match likeness(one.clients[0]).filter(|_| is_single) {
            Some(likeness) => alike.entry(likeness).or_default().push(one),
            None => joined.push(one),
        }
    }
    for mut group in alike.into_values() {
        if group.len() > TOP {
            let others = group.split_off(1);
            let others = others.into_iter().map(|one| one.clients[0]);
            group[0].clients.extend(others);
        }
        joined.extend(group);
    }
    joined
}

/// Judges the requests of the clients again, each under its rule, to count them over time.
fn count(all: &mut [Limited], trials: &[Trial], held: &HeldBack) {
    let mut again: Vec<Trial> = trials
        .iter()
        .map(|trial| Trial::new(trial.rule.clone()))
        .collect();
    let places = all.iter().enumerate();
    let places =
        places.flat_map(|(place, one)| one.clients.iter().map(move |&client| (client, place)));
    let places: HashMap<u32, usize, RandomState> = places.collect();
    for request in held.requests() {
        let Some(&place) = places.get(&request.client) else {
            continue;
        };
        let one = &mut all[place];
        let now = Nanos::new(request.time);
        let allowed = again[one.rule].judge(request.client, now, request.cost);
        let counts = one.timeline.at(request.time);
        counts[0] += 1;
        counts[1] += u64::from(allowed);
        one.requests += 1;
        if !allowed {
            one.denied += 1;
            one.span = (one.span.0.min(request.time), request.time);
        }
    }
}
