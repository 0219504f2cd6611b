//! Years for syslog lines, which carry none.

use std::time::{SystemTime, UNIX_EPOCH};

use super::time;
use super::time::SECOND;

/// The years of the lines of one log.
pub struct Years(YearSource);

enum YearSource {
    /// The year of the first line is known; it goes up where the months start anew.
    Counted { first: u32, now: u32, last_month: u32 },
    /// Each line has the latest year that puts it before this time, a day after the file was last written.
    UpTo(u64),
}

impl Years {
    /// For a log whose first line is of `year`, or that was last `modified` then.
    pub fn new(year: Option<u32>, modified: SystemTime) -> Self {
        Self(match year {
            Some(year) => YearSource::Counted { first: year, now: year, last_month: 1 },
            None => {
                let age = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
                YearSource::UpTo(age.as_secs().saturating_add(86_400).saturating_mul(SECOND))
            }
        })
    }

    /// The time of a month, day and second.
    pub fn place(&mut self, (month, day, second): (u32, u32, u32)) -> Option<u64> {
        match &mut self.0 {
            YearSource::Counted { first, now, last_month } => {
                // A line out of order may fall back behind the turn of the year.
                if month + 6 <= *last_month {
                    *now += 1;
                } else if *now > *first && *last_month == 1 && month == 12 {
                    *now -= 1;
                }
                *last_month = month;
                time::at(*now, month, day, second)
            }
            YearSource::UpTo(end) => {
                let year = time::year_of(*end);
                // Four years back there is a leap day at the latest, but for 1900 and its like.
                let years = (year.saturating_sub(8)..=year).rev();
                years.filter_map(|y| time::at(y, month, day, second)).find(|time| time <= end)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn years(years: &mut Years, dates: &[(u32, u32)]) -> Vec<u32> {
        let year = |&(month, day)| time::year_of(years.place((month, day, 0)).unwrap());
        dates.iter().map(year).collect()
    }

    #[test]
    fn a_given_year_goes_up_at_new_year() {
        let dates = [(12, 30), (1, 1), (12, 31), (1, 1), (2, 29), (12, 31), (1, 1)];
        let found = years(&mut Years::new(Some(2015), UNIX_EPOCH), &dates);
        assert_eq!(found, [2015, 2016, 2015, 2016, 2016, 2016, 2017]);
        let found = years(&mut Years::new(Some(2015), UNIX_EPOCH), &[(1, 1), (12, 31)]);
        assert_eq!(found, [2015, 2015]);
    }

    #[test]
    fn without_one_the_file_was_written_after_its_lines() {
        let written = Duration::from_nanos(time::at(2017, 1, 3, 0).unwrap());
        let dates = [(12, 30), (1, 3), (1, 4), (1, 5), (2, 29)];
        let found = years(&mut Years::new(None, UNIX_EPOCH + written), &dates);
        assert_eq!(found, [2016, 2017, 2017, 2016, 2016]);
    }
}
