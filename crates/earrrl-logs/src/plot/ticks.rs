//! The positions and texts of the ticks on a horizontal axis.

use std::ops::Range;

use plotters::coord::ranged1d::{
    BoldPoints, KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter,
};
use plotters::coord::types::RangedCoordf64;

use super::calendar;

/// The kind of values that the ticks of an axis show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ticks {
    /// The positions on the axis are the values.
    Numbers,
    /// The positions on the axis are decimal logarithms of the values.
    Powers,
    /// The positions on the axis are times, in seconds since the epoch.
    Calendar,
}

impl Ticks {
    /// Returns the position and text of each tick between two ends, at most `most` of them.
    pub(super) fn within(self, (from, to): (f64, f64), most: usize) -> Vec<(f64, String)> {
        match self {
            Self::Numbers => {
                let points = RangedCoordf64::from(from..to).key_points(BoldPoints(most));
                points.into_iter().map(|at| (at, short(at))).collect()
            }
            Self::Powers => powers(from, to, most),
            Self::Calendar => calendar::ticks(from.floor() as i64, to.ceil() as i64, most)
                .into_iter()
                .map(|(at, text)| (at as f64, text))
                .filter(|(at, _)| (from..=to).contains(at))
                .collect(),
        }
    }
}

/// A horizontal axis with computed ticks, in the form that the drawing library needs.
pub(super) struct Ticked {
    inner: RangedCoordf64,
    ticks: Vec<(f64, String)>,
}

impl Ticked {
    pub(super) fn new(span: (f64, f64), ticks: Vec<(f64, String)>) -> Self {
        Self {
            inner: (span.0..span.1).into(),
            ticks,
        }
    }
}

impl Ranged for Ticked {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn range(&self) -> Range<f64> {
        self.inner.range()
    }

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.inner.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.ticks.iter().map(|(at, _)| *at).collect(),
        }
    }
}

impl ValueFormatter<f64> for Ticked {
    fn format(value: &f64) -> String {
        short(*value)
    }

    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(at, _)| at == value);
        tick.map_or(String::new(), |(_, text)| text.clone())
    }
}

/// Returns ticks at powers of ten, and at their multiples by 2 and 5 if there is room for these.
fn powers(from: f64, to: f64, most: usize) -> Vec<(f64, String)> {
    let low = from.floor() as i32;
    let high = to.ceil() as i32;
    let step = ((high - low) as usize).div_ceil(most.max(1)).max(1);
    let fine = (high - low) as usize * 3 <= most;
    let factors: &[f64] = if fine { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let values = (low..=high)
        .step_by(step)
        .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
    values
        .map(|value| (value.log10(), short(value)))
        .filter(|(at, _)| (from..=to).contains(at))
        .collect()
}

/// Writes a number without superfluous digits.
pub(super) fn short(value: f64) -> String {
    if value != 0.0 && (value.abs() < 1e-3 || value.abs() >= 1e6) {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.25, "0.25"),
            (100.0, "100"),
            (1e-9, "1e-9"),
            (2e6, "2e6"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn powers_of_ten() {
        let texts = |from, to, most| -> Vec<String> {
            Ticks::Powers
                .within((from, to), most)
                .into_iter()
                .map(|(_, text)| text)
                .collect()
        };
        assert_eq!(
            texts(-1.0, 1.0, 8),
            ["0.1", "0.2", "0.5", "1", "2", "5", "10"]
        );
        assert_eq!(texts(-1.2, 2.1, 8), ["0.1", "1", "10", "100"]);
    }
}
