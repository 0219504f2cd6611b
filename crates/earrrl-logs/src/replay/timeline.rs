//! Counts the requests asked and permitted over time, in a bounded number of equal intervals.

use crate::line::time::SECOND;

/// The most intervals; when a log needs more, each two are merged into one.
const MOST: usize = 360;

/// Counts of requests by interval. The intervals become wider as the log gets longer.
///
/// ```
/// use earrrl_logs::replay::Timeline;
///
/// let mut timeline = Timeline::new(1);
/// timeline.at(1_700_000_000_000_000_000)[0] += 1;
/// ```
pub struct Timeline {
    /// The start of the first interval, in nanoseconds since the epoch.
    pub start: u64,
    /// The width of an interval, in nanoseconds.
    pub width: u64,
    /// One row for each interval: the number of requests, then the number that each rule permitted.
    pub counts: Vec<Box<[u64]>>,
    rules: usize,
}

impl Timeline {
    /// Creates a timeline without counts, for this number of rules.
    pub fn new(rules: usize) -> Self {
        Self {
            start: 0,
            width: SECOND,
            counts: Vec::new(),
            rules,
        }
    }

    /// Returns the counts of the interval that contains `time`, which must not be before the first
    /// interval.
    pub fn at(&mut self, time: u64) -> &mut [u64] {
        if self.counts.is_empty() {
            self.start = time / SECOND * SECOND;
        }
        let place = loop {
            match (time.saturating_sub(self.start) / self.width) as usize {
                place if place < MOST => break place,
                _ => self.halve(),
            }
        };
        if place >= self.counts.len() {
            let row = vec![0; self.rules + 1].into_boxed_slice();
            self.counts.resize(place + 1, row);
        }
        &mut self.counts[place]
    }

    fn halve(&mut self) {
        self.width *= 2;
        for place in 0..self.counts.len().div_ceil(2) {
            let mut row = std::mem::take(&mut self.counts[2 * place]);
            if let Some(next) = self.counts.get(2 * place + 1) {
                row.iter_mut()
                    .zip(next)
                    .for_each(|(sum, count)| *sum += count);
            }
            self.counts[place] = row;
        }
        self.counts.truncate(self.counts.len().div_ceil(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_intervals_grow() {
        let mut timeline = Timeline::new(1);
        let start = 1_000_000 * SECOND + 5;
        for second in 0..10_000 {
            let row = timeline.at(start + second * SECOND);
            row[0] += 1;
            row[1] += second % 2;
        }
        assert_eq!(timeline.start, 1_000_000 * SECOND);
        assert_eq!(timeline.width, 32 * SECOND);
        assert!(timeline.counts.len() <= MOST);
        let sum = |column: usize| timeline.counts.iter().map(|row| row[column]).sum::<u64>();
        assert_eq!((sum(0), sum(1)), (10_000, 5_000));
        assert!(timeline.counts[..312].iter().all(|row| row[0] == 32));
    }
}
