//! The legend of a panel: one or more rows above the chart, where they cover no part of it.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figure::{CHARACTER, GRAIN, Series, Stroke, TEXT, colour, font};

/// The height of a row of the legend, in pixels.
const HEIGHT: u32 = 22;

/// The width in pixels of the coloured line before a name, and of the gap after the name.
const LINE: u32 = 22;
const GAP: u32 = 6;

/// Draws the names of the series that have one, and returns the area below them.
pub(super) fn draw<DB: DrawingBackend<ErrorType: 'static>>(
    area: &DrawingArea<DB, Shift>,
    series: &[Series],
    left: u32,
) -> Result<DrawingArea<DB, Shift>, Box<dyn Error>> {
    let named: Vec<&Series> = series
        .iter()
        .filter(|series| !series.name.is_empty())
        .collect();
    if named.is_empty() {
        return Ok(area.clone());
    }
    let width = area.dim_in_pixel().0 / GRAIN;
    let places = places(
        named.iter().map(|series| series.name.chars().count()),
        left,
        width,
    );
    let rows = places.last().map_or(0, |&(_, row)| row + 1);
    let (strip, rest) = area.split_vertically(((rows * HEIGHT + GAP) * GRAIN) as i32);
    for (series, (x, row)) in named.into_iter().zip(places) {
        draw_name(&strip, series, (x, row * HEIGHT + HEIGHT / 2 + GAP))?;
    }
    Ok(rest)
}

/// Computes the left end, in pixels, and the row of each name from the names' lengths.
fn places(lengths: impl Iterator<Item = usize>, left: u32, width: u32) -> Vec<(u32, u32)> {
    let mut next = (left, 0);
    lengths
        .map(|length| {
            let needed = LINE + GAP + length as u32 * CHARACTER;
            if next.0 > left && next.0 + needed > width {
                next = (left, next.1 + 1);
            }
            let place = next;
            next.0 += needed + 2 * GAP;
            place
        })
        .collect()
}

fn draw_name<DB: DrawingBackend<ErrorType: 'static>>(
    area: &DrawingArea<DB, Shift>,
    series: &Series,
    (x, y): (u32, u32),
) -> Result<(), Box<dyn Error>> {
    let at = |x: u32| ((x * GRAIN) as i32, (y * GRAIN) as i32);
    let style = colour(series).stroke_width(2 * GRAIN);
    let gap = if series.stroke == Stroke::Dashed {
        2
    } else {
        0
    };
    let half = LINE / 2;
    area.draw(&PathElement::new(vec![at(x), at(x + half - gap)], style))?;
    area.draw(&PathElement::new(
        vec![at(x + half + gap), at(x + LINE)],
        style,
    ))?;
    let style = TextStyle::from(font(TEXT)).pos(Pos::new(HPos::Left, VPos::Center));
    area.draw(&Text::new(series.name.clone(), at(x + LINE + GAP), style))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_side_by_side_while_there_is_room() {
        let names = [5, 9, 40, 100];
        let places = places(names.into_iter(), 70, 400);
        assert_eq!(
            places.iter().map(|&(_, row)| row).collect::<Vec<_>>(),
            [0, 0, 1, 2]
        );
        assert!(places[1].0 > 70 + 4 * CHARACTER + LINE);
        assert_eq!((places[2].0, places[3].0), (70, 70));
    }
}
