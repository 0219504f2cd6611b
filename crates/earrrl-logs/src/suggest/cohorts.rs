//! Finds cohorts: user agents and networks nearly all of whose clients ask for paths of one shape and nothing else,
//! which few others do.

use super::callers::{COMPARED, Callers, Shown, at_least};
use super::habits::Habits;
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
    // Visitors ask for a page, go on, and send a form from it; a visit of a page alone shows nothing. Without user
    // agents, crawlers are not known.
    let is_narrow = |habits: &Habits| {
        let is_no_visit = habits.shape & 1 == 1 || shown.agents && habits.requests >= VISIT;
        habits.pretends_alone() && is_no_visit
    };
    let agents = habits.iter().map(|habits| match habits.agent {
        NONE => u32::MAX,
        agent => agent.into(),
    });
    let agents: Vec<u32> = agents.collect();
    let mut found = vec![false; habits.len()];
    for values in [&agents, &networks.of] {
        let members = values.iter().zip(habits).map(|(&value, habits)| {
            let shape = is_narrow(habits).then_some(habits.shape);
            (value, shape)
        });
        let members: Vec<(u32, Option<u32>)> = members.collect();
        let narrow = narrow_values(&members, callers);
        for (found, (value, shape)) in found.iter_mut().zip(members) {
            *found |= shape.is_some_and(|shape| narrow.contains_key(&(value, shape)));
        }
    }
    found
}

/// Returns the values nearly all of whose clients ask for one shape and nothing else, with the shape and their number.
/// It takes eight clients, of whom one in ten may do otherwise: if a quarter of all others did as they do, so many
/// would agree by chance under one agent, or in one network, of 50,000.
fn narrow_values(members: &[(u32, Option<u32>)], callers: &[Callers]) -> Table<(u32, u32), u32> {
    let mut sizes: Table<u32, u32> = Table::default();
    let mut narrow: Table<(u32, u32), u32> = Table::default();
    for &(value, shape) in members.iter().filter(|(value, _)| *value != u32::MAX) {
        *sizes.entry(value).or_default() += 1;
        if let Some(shape) = shape {
            *narrow.entry((value, shape)).or_default() += 1;
        }
    }
    narrow.retain(|(value, _), count| *count >= FEWEST && *count * 10 >= sizes[value] * 9);
    let mut of_shapes: Table<u32, usize> = Table::default();
    for ((_, shape), count) in &narrow {
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
    narrow.retain(|(_, shape), _| is_rare(*shape));
    narrow
}
