//! Counts the clients that ask for paths of one shape, those that ask for nothing else apart from all others.

use super::habits::{Answers, Habits, MANY, OFTEN, QUICK, Shown};
use super::rows::{NONE, Referer, Row, Rows, Table};

/// The least number of visitors' requests for paths of one shape, and of clients that ask for nothing else, that are
/// compared.
pub(super) const COMPARED: usize = 10;

/// The least number of visitors that show how they come to paths of one shape.
const VISITORS: usize = 5;

/// How many times as many clients send a form and nothing else as all others that send it as often, if they are no
/// visitors; and of clients that ask for a page, which people reload.
const OUTNUMBERED: usize = 2;
const FLOODED: usize = 6;

/// The least number of different pages that nobody reads without coming to one from another.
const READ: u32 = 4;

/// The number of clients that one group must have beyond such a multiple of the other, so that small groups prove
/// nothing.
const SURPLUS: usize = 20;

/// The most visitors that begin with a shape of paths, as a share of those that ask for it, if they come to it from
/// other pages.
const ENTRIES: f64 = 0.2;

/// The least number of different paths in a folder that count as paths of one shape.
const ALIKE_IN_FOLDER: u32 = 20;

/// The clients that ask for paths of one shape.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// The numbers of requests of those that ask for nothing else, and of those of them that ask for different paths.
    pub alone: Vec<u32>,
    reading: Vec<u32>,
    /// The numbers of requests of those that are only refused, and of those that ask for nothing else but are not.
    refused: Vec<u32>,
    allowed: Vec<u32>,
    /// The numbers of requests for the shape of all others, and of those that were refused.
    others: Vec<u32>,
    others_refused: Vec<u32>,
    /// The requests of others with browsers, those of them from a page or followed by its parts, and the number of
    /// these clients whose first request is one of them.
    visits: usize,
    dressed: usize,
    entries: usize,
    /// The number of these clients.
    pub browsers: usize,
}

/// The numbers of requests from which on clients that ask for nothing but paths of one shape are no visitors, and those
/// of clients that are only refused; `None` if visitors do so, too.
#[derive(Debug, Clone, Copy)]
pub(super) struct Least {
    pub alone: Option<u32>,
    pub reading: Option<u32>,
    pub refused: Option<u32>,
}

/// Returns the shape of each path: paths that differ in numbers, or in the last part if their folder has many, have the
/// same.
pub(super) fn shapes(paths: &[&[u8]]) -> Vec<u16> {
    let without_numbers = |path: &&[u8]| {
        let parts = path.split(|&byte| byte == b'/');
        let parts = parts.map(|part| match part.iter().any(u8::is_ascii_digit) {
            true if !is_version(part) => b"#",
            _ => part,
        });
        parts.collect::<Vec<_>>().join(&b'/')
    };
    let named: Vec<Vec<u8>> = paths.iter().map(without_numbers).collect();
    let folder = |path: &Vec<u8>| memchr::memrchr(b'/', path).filter(|&end| end > 0);
    let mut sizes: Table<&[u8], u32> = Table::default();
    for path in &named {
        if let Some(end) = folder(path) {
            *sizes.entry(&path[..end]).or_default() += 1;
        }
    }
    let shape = |path| {
        let end = folder(path).filter(|&end| sizes[&path[..end]] >= ALIKE_IN_FOLDER);
        &path[..end.unwrap_or(path.len())]
    };
    let mut numbers: Table<&[u8], u16> = Table::default();
    let mut shapes = Vec::new();
    for path in &named {
        let next = numbers.len() as u16;
        shapes.push(*numbers.entry(shape(path)).or_insert(next));
    }
    shapes
}

/// Returns true if the part of a path is the version of an API, such as `v2`: an old app that is refused at one version
/// has nothing in common with those of another.
fn is_version(part: &[u8]) -> bool {
    part.strip_prefix(b"v")
        .is_some_and(|number| number.iter().all(u8::is_ascii_digit))
}

/// Returns the shape of a request: that of its path, apart for requests that send something.
pub(super) fn shape_of(row: &Row, shapes: &[u16]) -> u32 {
    let path = shapes.get(usize::from(row.path)).copied();
    u32::from(path.unwrap_or(NONE)) << 1 | u32::from(row.sends)
}

/// Counts the callers of each shape.
pub(super) fn callers(
    rows: &Rows,
    habits: &[Habits],
    shapes: &[u16],
    answers: &Answers,
) -> Vec<Callers> {
    let last = shapes
        .iter()
        .max()
        .map_or(0, |&shape| usize::from(shape) + 1);
    let mut of_shapes: Vec<Callers> = Vec::new();
    of_shapes.resize_with(2 * last, Callers::default);
    for habits in habits.iter().filter(|habits| habits.pretends_alone()) {
        let Some(callers) = of_shapes.get_mut(habits.shape as usize) else {
            continue;
        };
        callers.alone.push(habits.requests);
        if habits.reads() {
            callers.reading.push(habits.requests);
        }
        if habits.refused_alone().is_none() {
            callers.allowed.push(habits.requests);
        }
    }
    for (shape, attempts) in habits.iter().filter_map(Habits::refused_alone) {
        if let Some(callers) = of_shapes.get_mut(shape as usize) {
            callers.refused.push(attempts);
        }
    }
    let mut counts: Table<(u32, u32), (u32, u32)> = Table::default();
    // The last request of each client, unless it shows the page that it comes from.
    let mut last: Vec<Option<(u32, u64)>> = vec![None; habits.len()];
    for row in &rows.all {
        let place = row.client as usize;
        let habits = &habits[place];
        if habits.pretends_alone() || habits.declared > 0 {
            continue;
        }
        if let Some((shape, time)) = last[place].take()
            && row.time - time < QUICK
        {
            of_shapes[shape as usize].dressed += 1;
        }
        let shape = shape_of(row, shapes);
        let Some(callers) = of_shapes.get_mut(shape as usize) else {
            continue;
        };
        let mut is_first = false;
        if callers.alone.len().max(callers.refused.len()) >= COMPARED {
            let (count, refused) = counts.entry((shape, row.client)).or_default();
            *count += 1;
            *refused += u32::from(answers.refuse(row));
            is_first = *count == 1;
        }
        // A browser that never shows how it comes to a page may be a program, so it does not count as a visitor.
        let is_bare = habits.is_alone() && habits.requests >= OFTEN;
        if !habits.is_browser() || is_bare || habits.is_long() && !habits.is_dressed() {
            continue;
        }
        callers.visits += 1;
        callers.browsers += usize::from(is_first);
        callers.entries += usize::from(is_first && habits.shape == shape);
        match row.referer {
            Referer::Own | Referer::Elsewhere => callers.dressed += 1,
            Referer::None => last[place] = Some((shape, row.time)),
        }
    }
    for ((shape, client), (count, refused)) in counts {
        let callers = &mut of_shapes[shape as usize];
        callers.others.push(count);
        if habits[client as usize].refused_alone().is_none() {
            callers.others_refused.push(refused);
        }
    }
    of_shapes
}

/// Returns the number of clients that sent `least` requests or more, given how many each of them sent.
pub(super) fn at_least(numbers: &[u32], least: u32) -> usize {
    numbers.iter().filter(|&&number| number >= least).count()
}

impl Callers {
    /// Returns true if most requests of browsers are from a page, or for one whose parts they load.
    pub(super) fn show_pages(&self) -> bool {
        self.are_visitors() && self.dressed * 3 >= self.visits * 2
    }

    /// Returns true if visitors with browsers ask for the shape among others.
    pub(super) fn are_visitors(&self) -> bool {
        // The clients are only counted where they are compared with others.
        match self.browsers {
            0 => self.visits >= COMPARED,
            clients => clients >= VISITORS,
        }
    }

    /// Returns true if browsers come to these paths from a page, or load the parts of one: as far as the log shows, if
    /// hardly any ask for them.
    fn are_pages(&self, shown: Shown) -> bool {
        match self.browsers < VISITORS {
            true => shown.pages,
            false => self.show_pages(),
        }
    }

    /// Returns the numbers of requests that no visitor sends.
    pub(super) fn least(&self, shape: u32, shown: Shown) -> Least {
        let sends = shape & 1 == 1;
        // A form is on a page, whether or not visitors send it.
        let are_known = self.are_visitors() || sends && shown.pages;
        let are_compared = are_known && self.alone.len() >= COMPARED;
        let are_pages = shown.agents && self.are_pages(shown);
        let alone = are_compared.then(|| self.least_alone(sends, shown));
        let shows_readers = !sends && are_pages && self.alone.len() >= COMPARED;
        let reading = |least: &u32| {
            let reading = at_least(&self.reading, *least);
            // No browser asks for the data of an app without a page.
            if self.browsers < VISITORS {
                return *least >= OFTEN && reading >= COMPARED;
            }
            let is_plateau = reading * 5 >= at_least(&self.reading, 2) * 4;
            is_plateau && reading >= at_least(&self.others, *least) / 5 + SURPLUS
        };
        Least {
            alone: alone.flatten(),
            reading: (READ..=MANY).find(reading).filter(|_| shows_readers),
            refused: self.least_refused(),
        }
    }

    /// Returns the least number of requests by which a client that asks only for paths of this shape is no visitor;
    /// `None` if visitors send as many.
    fn least_alone(&self, sends: bool, shown: Shown) -> Option<u32> {
        let alone = |least| at_least(&self.alone, least);
        let others = |least| at_least(&self.others, least);
        if shown.agents && self.are_pages(shown) {
            if self.alone.len() >= COMPARED * self.entries {
                return Some(1);
            }
            if sends {
                // Few visitors keep secret where they come from.
                return (2..=MANY)
                    .find(|&least| alone(least) * 10 >= others(least) + 10 * COMPARED);
            }
            let often = alone(OFTEN);
            return (often >= COMPARED && often * 2 >= self.alone.len()).then_some(OFTEN);
        }
        let are_many = |least, times| alone(least) >= times * others(least) + SURPLUS;
        if sends {
            let others = self.others.len();
            let come_from_elsewhere =
                others >= COMPARED && self.entries as f64 <= ENTRIES * others as f64;
            let least = (1..=MANY).find(|&least| are_many(least, OUTNUMBERED));
            return least.filter(|_| come_from_elsewhere);
        }
        // People reload a page that they know, but most of them seldom. Without user agents, crawlers are not known.
        let is_plateau = |least| alone(least) * 3 >= alone(2) * 2;
        let least = (MANY..=2 * MANY).find(|&least| are_many(least, FLOODED) && is_plateau(least));
        least.filter(|_| shown.agents)
    }

    /// Returns the number of refused requests that no visitor sends: those who are refused and ask for nothing else
    /// outnumber all that are refused as often and go on.
    fn least_refused(&self) -> Option<u32> {
        let allowed = self.others_refused.len() + self.allowed.len();
        let outnumber = |least: &u32| {
            let refused = at_least(&self.refused, *least);
            let alone = at_least(&self.allowed, *least);
            let others = at_least(&self.others_refused, *least);
            refused >= OUTNUMBERED * (alone + others) + SURPLUS
        };
        (2..=MANY).find(outnumber).filter(|_| allowed >= VISITORS)
    }
}
