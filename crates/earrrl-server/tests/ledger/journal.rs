//! The journals of clients, and the charges that they permit.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::client::RULES;

/// A step of a reservation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Entry {
    /// The request is about to be sent.
    Asked { key: u64, estimates: Vec<u64> },
    /// The reservation was made.
    Held,
    /// The server answered that it could not reserve.
    Failed { server: usize, at: SystemTime },
    /// The commit is about to be sent, and is sent until it is answered.
    Committing { costs: Vec<u64> },
    /// The commit was answered as applied, after this many without an answer.
    Committed { unanswered: u64 },
    /// The reservation was unknown or expired, after this many commits without an answer.
    Gone { unanswered: u64 },
}

impl Entry {
    /// Returns the line of the entry for a reservation.
    pub(super) fn line(&self, nth: u64) -> String {
        let list = |numbers: &[u64]| {
            numbers
                .iter()
                .map(u64::to_string)
                .collect::<Vec<_>>()
                .join(",")
        };
        let text = match self {
            Self::Asked { key, estimates } => format!("asked {key} {}", list(estimates)),
            Self::Held => "held".to_owned(),
            Self::Failed { server, at } => {
                format!(
                    "failed {server} {}",
                    at.duration_since(UNIX_EPOCH).unwrap().as_micros()
                )
            }
            Self::Committing { costs } => format!("committing {}", list(costs)),
            Self::Committed { unanswered } => format!("committed {unanswered}"),
            Self::Gone { unanswered } => format!("gone {unanswered}"),
        };
        format!("{nth} {text}\n")
    }

    fn parse(line: &str) -> (u64, Self) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |place: usize| words[place].parse::<u64>().unwrap();
        let list = |place: usize| {
            words[place]
                .split(',')
                .map(|n| n.parse().unwrap())
                .collect()
        };
        let entry = match words[1] {
            "asked" => Self::Asked {
                key: number(2),
                estimates: list(3),
            },
            "held" => Self::Held,
            "failed" => {
                let at = UNIX_EPOCH + Duration::from_micros(number(3));
                Self::Failed {
                    server: number(2) as usize,
                    at,
                }
            }
            "committing" => Self::Committing { costs: list(2) },
            "committed" => Self::Committed {
                unanswered: number(2),
            },
            "gone" => Self::Gone {
                unanswered: number(2),
            },
            other => panic!("{other}"),
        };
        (number(0), entry)
    }
}

/// The steps of each reservation of one client.
#[derive(Debug)]
pub(super) struct Journal(BTreeMap<u64, Vec<Entry>>);

impl Journal {
    /// Reads a journal. Its last line may be cut off, since its client may have been killed.
    pub(super) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut reservations: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
        for line in text
            .split_inclusive('\n')
            .filter_map(|line| line.strip_suffix('\n'))
        {
            let (nth, entry) = Entry::parse(line);
            reservations.entry(nth).or_default().push(entry);
        }
        Self(reservations)
    }

    /// Returns the number of reservations that were made.
    pub(super) fn held(&self) -> u64 {
        self.0
            .values()
            .filter(|entries| entries.contains(&Entry::Held))
            .count() as u64
    }
}

/// The charges of one key: the certain ones, and those of which one of two is right.
#[derive(Debug)]
pub(super) struct PossibleCharges {
    certain: Vec<u64>,
    either: Vec<[Vec<u64>; 2]>,
    /// True if the reservations are in Redis: each is charged and committed under all of its rules at
    /// once, and a commit that was applied is known to every server.
    is_shared: bool,
}

impl PossibleCharges {
    /// Adds up the charges of a key. `may_lack` returns true if a server may not have taken back what
    /// it had answered as failed at an instant.
    pub(super) fn new(
        journals: &[Journal],
        key: u64,
        is_shared: bool,
        may_lack: impl Fn(usize, SystemTime) -> bool,
    ) -> Self {
        let certain = vec![0; RULES.len()];
        let mut charges = Self {
            certain,
            either: Vec::new(),
            is_shared,
        };
        for entries in journals.iter().flat_map(|journal| journal.0.values()) {
            let Entry::Asked {
                key: asked,
                estimates,
            } = &entries[0]
            else {
                panic!("{entries:?}")
            };
            if *asked != key {
                continue;
            }
            let none = vec![0; estimates.len()];
            match &entries[1..] {
                [] => charges.add_either(&none, estimates),
                [Entry::Failed { server, at }] if may_lack(*server, *at) => {
                    charges.add_either(&none, estimates);
                }
                [Entry::Failed { .. }] => {}
                [Entry::Held] => charges.add(estimates),
                [Entry::Held, Entry::Committing { costs }] => charges.add_either(estimates, costs),
                [
                    Entry::Held,
                    Entry::Committing { costs },
                    Entry::Committed { unanswered },
                ] if is_shared || *unanswered == 0 => charges.add(costs),
                [
                    Entry::Held,
                    Entry::Committing { .. },
                    Entry::Gone { unanswered },
                ] if is_shared || *unanswered == 0 => {
                    charges.add(estimates);
                }
                [Entry::Held, Entry::Committing { costs }, Entry::Gone { .. }] => {
                    charges.add_either(estimates, costs)
                }
                // A server charges more than the estimate before it marks the reservation as
                // committed, and gives back after it. One that is killed at the mark charges the
                // difference twice, or does not give it back.
                [
                    Entry::Held,
                    Entry::Committing { costs },
                    Entry::Committed { .. },
                ] => {
                    let add_difference =
                        |(estimate, cost): (&u64, &u64)| cost + cost.abs_diff(*estimate);
                    let most: Vec<_> = estimates.iter().zip(costs).map(add_difference).collect();
                    charges.add_either(costs, &most);
                }
                other => panic!("{other:?}"),
            }
        }
        charges
    }

    fn add(&mut self, costs: &[u64]) {
        self.certain
            .iter_mut()
            .zip(costs)
            .for_each(|(sum, cost)| *sum += cost);
    }

    fn add_either(&mut self, one: &[u64], other: &[u64]) {
        self.either.push([one.to_vec(), other.to_vec()]);
    }

    /// Returns true if the key may have used these units, under each rule.
    pub(super) fn may_be(&self, used: &[u64]) -> bool {
        if self.is_shared {
            return self.may_be_under(used, |costs| costs.to_vec());
        }
        (0..used.len()).all(|rule| self.may_be_under(&[used[rule]], |costs| vec![costs[rule]]))
    }

    /// Compares the units under the rules that `project` chooses with every combination.
    fn may_be_under(&self, used: &[u64], project: impl Fn(&[u64]) -> Vec<u64>) -> bool {
        assert!(
            self.either.len() <= 20,
            "too many answers were lost: {}",
            self.either.len()
        );
        let mut sums = HashSet::from([project(&self.certain)]);
        for either in &self.either {
            let both = either.iter().map(|costs| project(costs));
            let add = |costs: &Vec<u64>| {
                let costs = costs.clone();
                sums.iter()
                    .map(move |sum| {
                        sum.iter()
                            .zip(&costs)
                            .map(|(sum, cost)| sum + cost)
                            .collect()
                    })
                    .collect::<Vec<Vec<u64>>>()
            };
            sums = both.flat_map(|costs| add(&costs)).collect();
        }
        sums.contains(used)
    }
}

/// Returns the numbers of reservations by their ends.
pub(super) fn summary(journals: &[Journal]) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for entries in journals.iter().flat_map(|journal| journal.0.values()) {
        let end = match entries.last() {
            Some(Entry::Asked { .. }) => "without an answer",
            Some(Entry::Held) => "never committed",
            Some(Entry::Failed { .. }) => "refused",
            Some(Entry::Committing { .. }) => "committed without an answer",
            Some(Entry::Committed { .. }) => "committed",
            Some(Entry::Gone { unanswered: 0 }) => "committed too late",
            Some(Entry::Gone { .. }) => "unknown after lost answers",
            None => "empty",
        };
        *counts.entry(end).or_default() += 1;
    }
    let held: u64 = journals.iter().map(Journal::held).sum();
    format!(
        "{held} reservations by {} clients: {counts:?}",
        journals.len()
    )
}
