//! Computes limits that may suit a log, and how many clients each would affect.

use std::str::FromStr;
use std::time::Duration;

use earrrl::algorithm::RecentAverage;
use earrrl::{Cost, Limit, Rate, Rule, RuleError};

use super::{Gap, Peaks};

/// The most rows in the table of limits.
const MOST: usize = 16;

/// A share of the clients, written as `0.1%` or `0.001`.
///
/// ```
/// use earrrl_logs::suggest::ClientShare;
///
/// let share: ClientShare = "0.1%".parse()?;
/// assert_eq!(share.of(5000), 5);
/// assert!("200%".parse::<ClientShare>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClientShare(f64);

impl ClientShare {
    /// Returns the greatest number of clients that is within this share of `count` clients.
    pub fn of(self, count: usize) -> usize {
        (self.0 * count as f64 + 1e-9) as usize
    }
}

/// The greatest share of the clients that a suggested limit may affect, unless the user sets one.
const USUAL: ClientShare = ClientShare(0.05);

/// Returns the number of clients that a suggested limit may affect: within the given share, or else
/// 5 % but at least one.
///
/// ```
/// use earrrl_logs::suggest::most_touched;
///
/// assert_eq!(most_touched("1%".parse().ok(), 1000), 10);
/// ```
pub fn most_touched(given: Option<ClientShare>, clients: usize) -> usize {
    given.map_or_else(|| USUAL.of(clients).max(1), |share| share.of(clients))
}

impl FromStr for ClientShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, whole) = match text.strip_suffix('%') {
            Some(number) => (number.trim_end(), 100.0),
            None => (text, 1.0),
        };
        let share = number.parse::<f64>().ok().map(|number| number / whole);
        let share = share.filter(|share| (0.0..1.0).contains(share)).map(Self);
        share.ok_or_else(|| "expected a share such as 0.1% or 0.001, below all".into())
    }
}

/// A limit, and the number of clients and requests that it would have denied.
pub struct JudgedLimit {
    /// The rule with this limit, to be copied into a configuration.
    pub rule: Rule,
    /// The rate a second above which requests are denied, in units of cost.
    pub limit: f64,
    /// The limit as the text of the rule states it.
    pub rate: Rate,
    /// The number of requests that an idle client may send at once.
    pub at_once: u64,
    /// The number of clients of which at least one request would be denied.
    pub clients: usize,
    /// The number of requests that would be denied.
    pub requests: u64,
    /// The half-life of the rule's average.
    pub half_life: Duration,
}

/// Returns round limits, from the median client's peak rate to the first that affects no client.
pub(super) fn rounds(peaks: &Peaks, descending: &[f64]) -> Result<Vec<JudgedLimit>, RuleError> {
    round_limits(descending, peaks.of_one_request)
        .map(|limit| candidate(rate(limit, false)?, peaks.half_life, descending))
        .collect()
}

/// Returns a limit in the middle of a gap, or one above every client if there is no gap.
pub(super) fn best(
    peaks: &Peaks,
    gap: Option<Gap>,
    descending: &[f64],
) -> Result<JudgedLimit, RuleError> {
    let greatest = descending
        .first()
        .copied()
        .unwrap_or(0.0)
        .max(peaks.of_one_request);
    let rate = match gap {
        Some(gap) => within(gap)?,
        None => rate(greatest * 2.0, true)?,
    };
    candidate(rate, peaks.half_life, descending)
}

/// Returns a limit near the middle of a gap; its clients and requests have yet to be counted.
pub(super) fn limit_within(gap: Gap, half_life: Duration) -> Result<JudgedLimit, RuleError> {
    candidate(within(gap)?, half_life, &[])
}

/// Returns a limit near the middle of a gap. It is 1, 2 or 5 times a power of ten if such a limit
/// is well inside the gap.
fn within(gap: Gap) -> Result<Rate, RuleError> {
    let middle = rate(gap.middle(), false)?;
    let unit = unit(gap.middle());
    let exponent = (gap.middle() * unit as f64).log10().floor() as i32;
    let mut best = None;
    for (digit, exponent) in [
        (1, exponent),
        (2, exponent),
        (5, exponent),
        (1, exponent + 1),
    ] {
        let amount = format!("{digit}e{exponent}").parse::<Cost>()?;
        let rate = Rate::new(amount, Duration::from_secs(unit))?;
        let per_second = rate.per_second_f64();
        let distance = (per_second / gap.middle()).ln().abs();
        let is_inside = per_second > gap.below * 1.2 && per_second < gap.above / 1.2;
        if is_inside && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, rate));
        }
    }
    Ok(best.map_or(middle, |(_, rate)| rate))
}

fn candidate(
    rate: Rate,
    half_life: Duration,
    descending: &[f64],
) -> Result<JudgedLimit, RuleError> {
    let limit = Limit::from(RecentAverage::with_half_life(rate, half_life)?);
    // Rules tolerate rounding errors of this size; without it the counts would differ from those of
    // `replay`.
    let threshold = rate.per_second_f64() * (1.0 + 1e-9);
    Ok(JudgedLimit {
        at_once: limit.at_once(),
        rule: Rule::from(limit),
        limit: threshold,
        rate,
        clients: descending.partition_point(|&peak| peak > threshold),
        requests: 0,
        half_life,
    })
}

/// Returns limits such as 1, 2, 5 and 10, from the median of the peaks to the first limit that
/// affects no client.
fn round_limits(descending: &[f64], least: f64) -> impl Iterator<Item = f64> {
    let greatest = descending.first().copied().unwrap_or(0.0);
    let median = descending
        .get(descending.len() / 2)
        .copied()
        .unwrap_or(0.0)
        .max(least);
    let start = (median.log10().floor() as i32) * 3;
    let limits =
        (start..).map(|n| [1.0, 2.0, 5.0][n.rem_euclid(3) as usize] * 10f64.powi(n.div_euclid(3)));
    let mut above = false;
    let row: Vec<f64> = limits
        .skip_while(|&limit| limit < median)
        .take_while(|&limit| !std::mem::replace(&mut above, limit >= greatest))
        .collect();
    let skipped = row.len().saturating_sub(MOST);
    row.into_iter().skip(skipped)
}

/// Returns the length in seconds of the shortest unit, of a second, a minute, an hour and a day, in which a rate is
/// about 1 or more.
fn unit(rate: f64) -> u64 {
    let units = [1, 60, 3600].into_iter();
    let mut units = units.filter(|&unit| rate * unit as f64 >= 0.995);
    units.next().unwrap_or(86_400)
}

/// Returns a limit with at most two digits in a suitable unit, rounded up if `up` is true,
/// otherwise to the nearest.
fn rate(limit: f64, up: bool) -> Result<Rate, RuleError> {
    let unit = unit(limit);
    let value = limit * unit as f64;
    let digits = 1 - value.log10().floor() as i32;
    let scaled = value * 10f64.powi(digits);
    // Without the factor, a rounding error would make an exact limit round up to the next digit.
    let scaled = if up {
        (scaled * (1.0 - 1e-12)).ceil()
    } else {
        scaled.round()
    };
    let text = format!("{scaled:.0}e{}", -digits);
    Rate::new(text.parse::<Cost>()?, Duration::from_secs(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_two_digits_in_the_unit_that_suits() {
        for (limit, up, text) in [
            (1.0, true, "1/s"),
            (1.001, true, "1.1/s"),
            (1.001, false, "1/s"),
            (12_345.0, true, "13000/s"),
            (0.5, true, "30/m"),
            (0.5 + 1e-9, true, "31/m"),
            (1.0 / 3600.0, true, "1/h"),
            (1.0 / 86_400.0, true, "1/d"),
            (1e-7, true, "0.0087/d"),
        ] {
            assert_eq!(rate(limit, up).unwrap().to_string(), text, "{limit}");
        }
    }

    #[test]
    fn limits_are_round_and_end_above_the_worst() {
        let limits = |peaks: &[f64], least| round_limits(peaks, least).collect::<Vec<_>>();
        assert_eq!(limits(&[30.0, 2.0, 1.0], 0.1), [2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(limits(&[0.0, 0.0], 0.05).len(), 1);
        assert_eq!(limits(&[], 0.05).len(), 1);
        assert_eq!(limits(&[1e9, 0.0], 1e-6).len(), MOST);
    }

    #[test]
    fn limits_lie_well_inside_a_gap() {
        for (below, above, text) in [
            (0.1, 6.0, "50/m"),
            (0.1, 2.0, "20/m"),
            (1.0, 3.1, "2/s"),
            (1.0, 1.2, "1.1/s"),
            (1.0 / 3600.0, 1.0 / 36.0, "10/h"),
        ] {
            let gap = Gap::between(above, below);
            assert_eq!(within(gap).unwrap().to_string(), text, "{below} to {above}");
        }
    }

    #[test]
    fn shares() {
        for (text, share) in [
            ("0.1%", Some(0.001)),
            ("0.001", Some(0.001)),
            ("0", Some(0.0)),
        ] {
            assert_eq!(text.parse().ok(), share.map(ClientShare));
        }
        for text in ["100%", "-1%", "x", "NaN", ""] {
            assert!(text.parse::<ClientShare>().is_err(), "{text}");
        }
        assert_eq!(most_touched("3%".parse().ok(), 100), 3);
        assert_eq!((most_touched(None, 100), most_touched(None, 7)), (5, 1));
    }
}
