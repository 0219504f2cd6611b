//! Finds cohorts: user agents and networks nearly all of whose clients ask for paths of one shape and nothing else,
//! which few others do.

use super::callers::{COMPARED, Callers, at_least};
use super::habits::{Habits, Shown};
use super::networks::Networks;
use super::rows::{NONE, Table};

/// The least number of clients that show what is usual under a user agent, or in a network.
const FEWEST: u32 = 8;

/// The least number of requests for pages that are not a visit of a single one.
const VISIT: u32 = 3;

/// The number of all other clients that ask for a shape, to each of them that asks for nothing else.
const RARE: usize = 3;

/// Returns whether each client is in a cohort.
pub(super) fn cohorts(
    habits: &[Habits],
    callers: &[Callers],
    networks: &Networks,
    shown: Shown,
) -> Vec<bool> {
    // Visitors ask for a page, go on, and send a form from it. Without user agents, crawlers are not known.
    let narrow = |habits: &Habits| {
        let sends = habits.shape & 1 == 1;
        let member = Narrow {
            shape: habits.shape,
            // A visit of a page alone shows nothing.
            is_no_visit: sends || habits.requests >= VISIT,
        };
        (habits.pretends_alone() && (sends || shown.agents)).then_some(member)
    };
    let agents = habits.iter().map(|habits| match habits.agent {
        NONE => u32::MAX,
        agent => agent.into(),
    });
    let agents: Vec<u32> = agents.collect();
    let mut found = vec![false; habits.len()];
    for values in [&agents, &networks.of] {
        let members = values
            .iter()
            .zip(habits)
            .map(|(&value, habits)| (value, narrow(habits)));
        let members: Vec<(u32, Option<Narrow>)> = members.collect();
        let cohorts = cohorts_of(&members, callers);
        for (found, (value, member)) in found.iter_mut().zip(members) {
            *found |= member.is_some_and(|member| cohorts.contains_key(&(value, member.shape)));
        }
    }
    found
}

/// A client that asks for paths of one shape and nothing else.
#[derive(Debug, Clone, Copy)]
struct Narrow {
    shape: u32,
    is_no_visit: bool,
}

/// Returns the values nearly all of whose clients ask for one shape and nothing else, with the shape and the number of
/// those who do so more than a visitor, which half of them do.
/// It takes eight of these, and one in ten clients may do otherwise: if a quarter of all others did as they do, so many
/// would agree by chance under one agent, or in one network, of 50,000.
fn cohorts_of(members: &[(u32, Option<Narrow>)], callers: &[Callers]) -> Table<(u32, u32), u32> {
    let mut sizes: Table<u32, u32> = Table::default();
    // All of a value, and those who are no visitors.
    let mut narrow: Table<(u32, u32), [u32; 2]> = Table::default();
    for &(value, member) in members.iter().filter(|(value, _)| *value != u32::MAX) {
        *sizes.entry(value).or_default() += 1;
        if let Some(member) = member {
            let [all, no_visits] = narrow.entry((value, member.shape)).or_default();
            *all += 1;
            *no_visits += u32::from(member.is_no_visit);
        }
    }
    let nearly_all = narrow.into_iter().filter(|((value, _), [all, no_visits])| {
        *no_visits >= FEWEST && no_visits * 2 >= *all && all * 10 >= sizes[value] * 9
    });
    let mut cohorts: Table<(u32, u32), u32> = nearly_all
        .map(|(cohort, [_, no_visits])| (cohort, no_visits))
        .collect();
    let mut of_shapes: Table<u32, usize> = Table::default();
    for ((_, shape), count) in &cohorts {
        *of_shapes.entry(*shape).or_default() += *count as usize;
    }
    // How many do so under agents, or in networks, that others have, too.
    let is_rare = |shape: u32| {
        let Some(callers) = callers.get(shape as usize) else {
            return false;
        };
        let least = if shape & 1 == 1 { 1 } else { VISIT };
        let alone = at_least(&callers.alone, least).saturating_sub(of_shapes[&shape]);
        callers.browsers >= 2 * COMPARED && alone * RARE <= callers.browsers
    };
    cohorts.retain(|(_, shape), _| is_rare(*shape));
    cohorts
}
