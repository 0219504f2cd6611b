//! Finds addresses of many people, such as those of offices and carriers, among the clients that stand out.

use earrrl::RuleError;

use super::Sweep;
use super::habits::is_failure;
use super::peaks::RateMeter;
use super::profile::CROWD;
use super::rows::{Row, Rows, Table, logged};

/// The people behind one address.
#[derive(Debug, Clone, Copy, Default)]
struct Visitors {
    agents: usize,
    requests: u64,
    failed: u64,
    /// The requests under the same user agent as the client's last.
    same: u64,
    /// The sum of the squares of the numbers of requests under each user agent.
    squares: u64,
    last_agent: u16,
    /// The greatest rate of one user agent.
    peak: f64,
}

impl Rows {
    /// Returns the clients above the gaps of a sweep that are many people behind one address: none of their many user
    /// agents stands out, and the requests under one come one after the other, as those for a page and its parts do.
    ///
    /// # Errors
    /// Returns an error if no rule can have one of the half-lives.
    pub fn crowds(&self, sweep: &Sweep) -> Result<Vec<u32>, RuleError> {
        crowds(&self.all, sweep, false)
    }
}

/// Finds crowds as [`Rows::crowds`] does. Of one path, each of many people asks once.
pub(super) fn crowds(
    rows: &[Row],
    sweep: &Sweep,
    of_one_path: bool,
) -> Result<Vec<u32>, RuleError> {
    let mut found = Vec::new();
    for (peaks, gap) in &sweep.tried {
        let Some(gap) = gap else { continue };
        let above = peaks.worst(gap.clients).into_iter();
        let mut above: Table<u32, Visitors> =
            above.map(|client| (client, Visitors::default())).collect();
        let mut meter = RateMeter::new(peaks.half_life)?;
        let mut seen: Table<(u32, u16), (u32, u64)> = Table::default();
        for row in rows {
            let Some(visitors) = above.get_mut(&row.client) else {
                continue;
            };
            let next = (seen.len() as u32, 0);
            let (number, before) = seen.entry((row.client, row.agent)).or_insert(next);
            visitors.add(row, meter.add(logged(row, *number)), *before);
            *before += 1;
        }
        let is_crowd = |(_, visitors): &(&u32, &Visitors)| {
            visitors.are_many(gap.middle()) && (of_one_path || visitors.come_one_by_one())
        };
        found.extend(above.iter().filter(is_crowd).map(|(&client, _)| client));
    }
    Ok(found)
}

impl Visitors {
    /// Adds a request of a user agent that has this rate, and sent so many before.
    fn add(&mut self, row: &Row, rate: f64, before: u64) {
        self.same += u64::from(self.requests > 0 && row.agent == self.last_agent);
        self.last_agent = row.agent;
        self.agents += usize::from(before == 0);
        self.requests += 1;
        self.squares += 2 * before + 1;
        self.failed += u64::from(is_failure(row.status));
        self.peak = self.peak.max(rate);
    }

    /// Returns true if these are many, each slower than the middle of a gap: more like the visitors below it than like
    /// those above.
    fn are_many(&self, middle: f64) -> bool {
        self.agents >= CROWD && self.peak < middle && self.failed * 10 <= self.requests
    }

    /// Returns true if the requests under one agent come one after the other, as those for a page and its parts do. A
    /// program that draws its user agents at random repeats the last one as seldom as chance has it.
    fn come_one_by_one(&self) -> bool {
        self.same * self.requests >= 4 * self.squares
    }
}
