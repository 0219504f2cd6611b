//! Places the labels of a chart where they cross no line and no other label.

use plotters::style::text_anchor::HPos;

use super::figure::{CHARACTER, GRAIN, TEXT};

/// The distance in pixels between a point or a vertical line and its label.
const GAP: i32 = 5;

/// The height of a label with the space around it, in pixels.
const ROW: i32 = TEXT as i32 + 4;

/// The most rows by which a label may be away from its point.
const ROWS: i32 = 6;

/// A point of the drawing, in the drawing's pixels.
pub(super) type Pixel = (i32, i32);

/// A possible place of a label: the middle of its left or right edge.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    /// The pixel at the middle of the edge.
    pub at: Pixel,
    /// The edge that is at the pixel.
    pub edge: HPos,
}

/// A rectangle in the drawing's pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rectangle {
    pub left: i32,
    pub top: i32,
    pub right: i32,
    pub bottom: i32,
}

impl Rectangle {
    /// Returns the area of a text, by an upper bound of the width of its characters.
    fn of(text: &str, Spot { at: (x, y), edge }: Spot) -> Self {
        let grain = GRAIN as i32;
        let width = text.chars().count() as i32 * CHARACTER as i32 * grain;
        let left = if matches!(edge, HPos::Right) {
            x - width
        } else {
            x
        };
        let half = TEXT as i32 * grain / 2;
        Self {
            left,
            top: y - half,
            right: left + width,
            bottom: y + half,
        }
    }

    fn contains(&self, other: &Self) -> bool {
        (self.left <= other.left && other.right <= self.right)
            && (self.top <= other.top && other.bottom <= self.bottom)
    }

    fn overlaps(&self, other: &Self) -> bool {
        (self.left < other.right && other.left < self.right)
            && (self.top < other.bottom && other.top < self.bottom)
    }

    /// Returns true if a line between two points passes through the rectangle.
    fn meets(&self, [from, to]: [Pixel; 2]) -> bool {
        let x = within((from.0, to.0), (self.left, self.right));
        let y = within((from.1, to.1), (self.top, self.bottom));
        x.0.max(y.0) <= x.1.min(y.1)
    }
}

/// Returns the part of a line, between 0 and 1, in which one of its coordinates is between `low`
/// and `high`. The part is empty, with its end before its start, if no point is.
fn within((from, to): (i32, i32), (low, high): (i32, i32)) -> (f64, f64) {
    if from == to {
        return if (low..=high).contains(&from) {
            (0.0, 1.0)
        } else {
            (1.0, 0.0)
        };
    }
    let share = |at: i32| f64::from(at - from) / f64::from(to - from);
    let one = share(low);
    let other = share(high);
    (one.min(other).max(0.0), one.max(other).min(1.0))
}

/// The lines and labels of a chart that further labels must not cross.
pub(super) struct Labels {
    bounds: Rectangle,
    lines: Vec<[Pixel; 2]>,
    labels: Vec<Rectangle>,
}

impl Labels {
    /// Creates an empty chart whose labels must be within `bounds`.
    pub(super) fn new(bounds: Rectangle) -> Self {
        Self {
            bounds,
            lines: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// Adds a line through these points.
    pub(super) fn add_line(&mut self, points: impl Iterator<Item = Pixel>) {
        let mut last = None;
        for point in points {
            if let Some(last) = last.replace(point) {
                self.lines.push([last, point]);
            }
        }
    }

    /// Returns the place of a label beside the point that it is about.
    pub(super) fn beside_point(&mut self, text: &str, (x, y): Pixel) -> Spot {
        let gap = GAP * GRAIN as i32;
        let row = ROW * GRAIN as i32;
        let spots = (0..ROWS).flat_map(|rows| {
            let away = rows * row + row / 2;
            let level = if rows == 0 { y } else { y - away };
            let mut spots = [
                Spot {
                    at: (x - gap, y - away),
                    edge: HPos::Right,
                },
                Spot {
                    at: (x + gap, level),
                    edge: HPos::Left,
                },
                Spot {
                    at: (x + gap, y - away),
                    edge: HPos::Left,
                },
                Spot {
                    at: (x - gap, y + away),
                    edge: HPos::Right,
                },
                Spot {
                    at: (x + gap, y + away),
                    edge: HPos::Left,
                },
            ];
            // Further from the point, below goes first: lines that end close to each other then have
            // their labels in the order of the lines.
            if rows > 0 {
                spots.reverse();
            }
            spots
        });
        self.place(text, spots)
    }

    /// Returns the highest free place for a label beside the vertical line at `x`.
    pub(super) fn beside_line(&mut self, text: &str, x: i32) -> Spot {
        let gap = GAP * GRAIN as i32;
        let row = ROW * GRAIN as i32;
        let Rectangle { top, bottom, .. } = self.bounds;
        let heights = (top + row / 2..bottom).step_by(row as usize / 2);
        let spots = heights.flat_map(|y| {
            [
                Spot {
                    at: (x + gap, y),
                    edge: HPos::Left,
                },
                Spot {
                    at: (x - gap, y),
                    edge: HPos::Right,
                },
            ]
        });
        self.place(text, spots)
    }

    /// Takes the spot with the fewest crossings, the first one of several.
    fn place(&mut self, text: &str, spots: impl Iterator<Item = Spot>) -> Spot {
        let best = spots.min_by_key(|&spot| self.crossings(Rectangle::of(text, spot)));
        let spot = best.unwrap_or(Spot {
            at: (self.bounds.left, self.bounds.top),
            edge: HPos::Left,
        });
        self.labels.push(Rectangle::of(text, spot));
        spot
    }

    /// Counts the lines and labels that a label crosses. To be cut off counts more than any.
    fn crossings(&self, label: Rectangle) -> usize {
        let outside = if self.bounds.contains(&label) {
            0
        } else {
            self.lines.len() + 1
        };
        let labels = self
            .labels
            .iter()
            .filter(|other| label.overlaps(other))
            .count();
        outside + labels + self.lines.iter().filter(|&&line| label.meets(line)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Rectangle = Rectangle {
        left: 0,
        top: 0,
        right: 2000,
        bottom: 1000,
    };

    #[test]
    fn a_line_meets_a_rectangle_that_it_passes_through() {
        let rectangle = Rectangle {
            left: 10,
            top: 10,
            right: 20,
            bottom: 20,
        };
        for (line, meets) in [
            ([(0, 0), (30, 30)], true),
            ([(30, 30), (0, 0)], true),
            ([(15, 0), (15, 30)], true),
            ([(12, 12), (14, 14)], true),
            ([(0, 15), (9, 15)], false),
            ([(0, 15), (30, 60)], false),
            ([(0, 25), (30, 25)], false),
        ] {
            assert_eq!(rectangle.meets(line), meets, "{line:?}");
        }
    }

    #[test]
    fn labels_keep_clear_of_lines_and_of_each_other() {
        let mut labels = Labels::new(BOUNDS);
        labels.add_line([(0, 500), (1000, 500), (2000, 100)].into_iter());
        let spots = [
            labels.beside_point("one", (1000, 500)),
            labels.beside_point("two", (1000, 500)),
        ];
        let areas = spots.map(|spot| Rectangle::of("one", spot));
        assert!(!areas[0].overlaps(&areas[1]));
        assert!(
            areas
                .iter()
                .all(|area| labels.lines.iter().all(|&line| !area.meets(line)))
        );
        assert!(spots[0].at.1 < 500, "above the line is the first choice");
        // At the right end, the label is left of its line.
        assert!(labels.beside_line("three", 1990).at.0 < 1990);
    }
}
