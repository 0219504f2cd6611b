//! The algorithms against numbers from elsewhere, against what must always hold, and against
//! exact arithmetic.

// A test fails by panicking, in its helpers too.
#![allow(clippy::unwrap_used, clippy::panic)]

mod accuracy;
mod calendar;
mod client;
mod extremes;
mod first_window;
mod properties;
mod vectors;

#[test]
fn the_guide_describes_every_algorithm() {
    let guide = include_str!("../../src/guide.md");
    let table: Vec<&str> = guide
        .lines()
        .filter(|line| line.starts_with("| "))
        .collect();
    for name in earrrl::internal::algorithms() {
        let rule = format!("`{name} ");
        assert!(
            table.iter().any(|row| row.contains(&rule)),
            "no row of guide.md has {name}"
        );
    }
}
