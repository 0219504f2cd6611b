//! Suggestions for misspelt names.

use alloc::vec::Vec;

/// Returns the known name (lower case) that is most similar to `wrong`, or `None` if none is
/// similar enough.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong: Vec<char> = wrong
        .chars()
        .take(40)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    let lower = |name: &str| {
        name.chars()
            .map(|c| c.to_ascii_lowercase())
            .collect::<Vec<_>>()
    };
    let distance = |name: &str| distance(&wrong, &lower(name));
    let (distance, name) = known.into_iter().map(|name| (distance(name), name)).min()?;
    (distance <= 1 + name.len() / 4).then_some(name)
}

/// Returns the edit distance: the number of letters to insert, delete, replace or swap with their
/// neighbour.
fn distance(from: &[char], to: &[char]) -> usize {
    let mut rows: [Vec<usize>; 3] = core::array::from_fn(|_| (0..=to.len()).collect());
    for i in 1..=from.len() {
        rows.rotate_left(1);
        let [before, above, row] = &mut rows;
        row[0] = i;
        for j in 1..=to.len() {
            let swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
            let exchanged = above[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let swap = if swapped {
                before[j - 2] + 1
            } else {
                usize::MAX
            };
            row[j] = exchanged.min(swap).min(above[j] + 1).min(row[j - 1] + 1);
        }
    }
    rows[2][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["limit", "name", "capacity"];
        for (wrong, meant) in [
            ("limitt", Some("limit")),
            ("nmae", Some("name")),
            ("CAPACITY", Some("capacity")),
            ("cpacty", Some("capacity")),
            ("frobnicate", None),
            ("", None),
        ] {
            assert_eq!(nearest(wrong, known), meant, "{wrong}");
        }
        assert_eq!(nearest("x", []), None);
    }
}
