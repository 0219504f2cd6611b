//! The years of syslog lines, which are not written on the lines.

use std::time::{SystemTime, UNIX_EPOCH};

use super::time;
use super::time::SECOND;

/// Determines the years of the lines in one log.
#[derive(Clone)]
pub(crate) struct Years(YearSource);

#[derive(Clone)]
enum YearSource {
    /// The year of the first line is given. The year increases when the months start again.
    Counted {
        first: u32,
        now: u32,
        last_month: u32,
    },
    /// The end of the log: one day after it was last modified, in nanoseconds since the Unix
    /// epoch. Each line gets the latest year that puts it at or before this end.
    UpTo(u64),
}

impl Years {
    /// Creates the years of a log whose first line is in `year`. Without a year, the time when the
    /// log was last modified determines the years.
    pub(crate) fn new(year: Option<u32>, modified: SystemTime) -> Self {
        Self(match year {
            Some(year) => YearSource::Counted {
                first: year,
                now: year,
                last_month: 1,
            },
            None => {
                let age = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
                YearSource::UpTo(age.as_secs().saturating_add(86_400).saturating_mul(SECOND))
            }
        })
    }

    /// Returns the time of a line with this month, day and second of the day.
    pub(crate) fn place(&mut self, (month, day, second): (u32, u32, u32)) -> Option<u64> {
        match &mut self.0 {
            YearSource::Counted {
                first,
                now,
                last_month,
            } => {
                // At the turn of the year, lines may be out of order, so a step from January to
                // December goes back a year.
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
                // The 29th of February can be missing for up to eight years, as between 1896 and
                // 1904, so as many years are tried.
                let years = (year.saturating_sub(8)..=year).rev();
                years
                    .filter_map(|y| time::at(y, month, day, second))
                    .find(|time| time <= end)
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
        let dates = [
            (12, 30),
            (1, 1),
            (12, 31),
            (1, 1),
            (2, 29),
            (12, 31),
            (1, 1),
        ];
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
