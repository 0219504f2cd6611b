//! Tests every figure that the commands draw: described, legible, and without labels on lines.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;

use crate::command::{earrrl, logs};

/// The least size of a text in pixels where a figure is shown 800 pixels wide.
const LEAST: f64 = 11.0;

/// The folder of the documentation.
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

/// The names of the figures that an example of the log tools draws, and its tests compare.
const NAMES: [&str; 6] = [
    "tracking",
    "tracking-short",
    "windowed-vs-recent",
    "doubled-window",
    "credit-pool",
    "exponential",
];

const RULES: [&str; 6] = [
    "--rule",
    "recent-average 1/s half-life=10s",
    "--rule",
    "fixed-window 60/1m",
    "--rule",
    "gcra 1/s burst=20",
];

/// The figures of the page on choosing a limit, each with the arguments that the page prints for it.
const EXAMPLES: [(&str, &[&str]); 4] = [
    (
        "burst",
        &[
            "simulate",
            "--rule",
            "gcra 1/s burst=5",
            "--rule",
            "gcra 1/s burst=20",
            "--rule",
            "gcra 1/s burst=60",
            "--client",
            "hasty steady 5/s",
            "--duration",
            "20s",
        ],
    ),
    (
        "half-life",
        &[
            "simulate",
            "--rule",
            "recent-average 1/s half-life=10s strict",
            "--rule",
            "recent-average 1/s half-life=30s strict",
            "--rule",
            "recent-average 1/s half-life=60s strict",
            "--client",
            "greedy steady 3/s until=120s",
            "--client",
            "greedy steady 0.5/s from=120s",
            "--duration",
            "300s",
        ],
    ),
    (
        "strict-leaky",
        &[
            "simulate",
            "--rule",
            "gcra 1/s burst=15",
            "--rule",
            "recent-average 1/s half-life=10s leaky",
            "--rule",
            "recent-average 1/s half-life=10s strict",
            "--client",
            "greedy steady 2/s until=120s",
            "--client",
            "greedy steady 0.5/s from=120s",
            "--duration",
            "200s",
        ],
    ),
    (
        "workers",
        &[
            "simulate",
            "--rule",
            "recent-average 1/s half-life=10s strict",
            "--rule",
            "recent-average 1/s half-life=10s strict waits=first",
            "--client",
            "office steady 1/s obey workers=5",
            "--duration",
            "300s",
        ],
    ),
];

/// A text of a figure: its content, its size and its area, in pixels of the drawing.
struct Text {
    content: String,
    size: f64,
    /// The left, top, right and bottom end; `None` if the text is rotated.
    area: Option<[f64; 4]>,
}

/// Returns an attribute of an element.
fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let start = element.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
    element[start..].split('"').next().unwrap()
}

fn number(element: &str, name: &str) -> f64 {
    attribute(element, name).parse().unwrap()
}

fn texts(svg: &str) -> Vec<Text> {
    let elements = svg.split("<text").skip(1);
    elements
        .map(|element| {
            let (tag, rest) = element.split_once('>').unwrap();
            let content = rest.split("</text>").next().unwrap().trim().to_owned();
            let x = number(tag, "x");
            let y = number(tag, "y");
            let size = number(tag, "font-size");
            // Characters of common fonts are half as wide as high on average.
            let width = content.chars().count() as f64 * size * 0.5;
            let left = match attribute(tag, "text-anchor") {
                "start" => x,
                "middle" => x - width / 2.0,
                _ => x - width,
            };
            let baseline = match attribute(tag, "dy") {
                "0.76em" => y + 0.76 * size,
                "0.5ex" => y + 0.25 * size,
                _ => y - 0.25 * size,
            };
            let area = [left, baseline - 0.7 * size, left + width, baseline];
            Text {
                content,
                size,
                area: (!tag.contains("rotate")).then_some(area),
            }
        })
        .collect()
}

/// Returns the points of every line that is not part of the grid.
fn lines(svg: &str) -> Vec<Vec<(f64, f64)>> {
    let points = svg
        .split("<polyline")
        .skip(1)
        .map(|element| attribute(element, "points"));
    let point = |text: &str| {
        let (x, y) = text.split_once(',').unwrap();
        (x.parse().unwrap(), y.parse().unwrap())
    };
    points
        .map(|points| points.split_whitespace().map(point).collect())
        .collect()
}

/// Returns true if one of a hundred points of a line is in the area.
fn crosses(line: &[(f64, f64)], [left, top, right, bottom]: [f64; 4]) -> bool {
    line.windows(2).any(|pair| {
        (0..=100).any(|nth| {
            let share = f64::from(nth) / 100.0;
            let x = pair[0].0 + share * (pair[1].0 - pair[0].0);
            let y = pair[0].1 + share * (pair[1].1 - pair[0].1);
            (left..=right).contains(&x) && (top..=bottom).contains(&y)
        })
    })
}

fn check(name: &str, svg: &str) {
    assert!(svg.starts_with("<svg role=\"img\""), "{name}");
    let description = svg
        .split_once("<desc>")
        .unwrap()
        .1
        .split("</desc>")
        .next()
        .unwrap();
    assert!(
        svg.contains("<title>") && !svg.contains("<title></title>"),
        "{name}"
    );
    assert!(description.contains(": at most "), "{name}");
    let view: Vec<f64> = attribute(svg, "viewBox")
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect();
    let texts = texts(svg);
    let lines = lines(svg);
    for text in &texts {
        let shown = text.size * 800.0 / view[2];
        assert!(shown >= LEAST, "{name}: `{}` has {shown} px", text.content);
        let Some(area) = text.area.filter(|_| !text.content.is_empty()) else {
            continue;
        };
        assert!(
            area[0] >= 0.0 && area[2] <= view[2],
            "{name}: `{}` is cut off",
            text.content
        );
        let crossed = lines.iter().filter(|line| crosses(line, area)).count();
        assert_eq!(crossed, 0, "{name}: `{}` is crossed", text.content);
        let overlaps = |other: &[f64; 4]| {
            (area[0] < other[2] && other[0] < area[2]) && (area[1] < other[3] && other[1] < area[3])
        };
        let others = texts.iter().filter(|other| !other.content.is_empty());
        let count = others
            .filter_map(|other| other.area.as_ref())
            .filter(|a| overlaps(a))
            .count();
        assert_eq!(count, 1, "{name}: another text is on `{}`", text.content);
    }
}

/// Runs a command and returns the figure that it writes to a file.
fn plotted(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("figure.svg");
    let outcome = earrrl(&[arguments, &["--plot", path.to_str().unwrap()]].concat());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let svg = fs::read_to_string(path).unwrap();
    assert!(svg.contains("prefers-color-scheme: dark"));
    svg
}

/// Returns a figure of the documentation.
fn committed(name: &str) -> String {
    fs::read_to_string(format!("{DOCS}/figures/{name}.svg")).unwrap()
}

#[test]
fn figures_in_files_are_legible() {
    let log = logs().join("access.log");
    let log = log.to_str().unwrap();
    for name in NAMES {
        check(name, &committed(name));
    }
    for (name, arguments) in EXAMPLES {
        check(name, &plotted(arguments));
    }
    check("suggest", &plotted(&["suggest", log]));
    let replay = plotted(&[&["replay", log], &RULES[..]].concat());
    check("replay", &replay);
    for rule in RULES.iter().filter(|rule| **rule != "--rule") {
        assert_eq!(
            replay.matches(&format!("\npermitted by {rule}\n")).count(),
            1
        );
    }
}

#[test]
fn figures_in_reports_are_legible() {
    let log = logs().join("access.log");
    let report = [
        &["replay", log.to_str().unwrap(), "--output", "html"],
        &RULES[..],
    ]
    .concat();
    let page = earrrl(&report).out;
    let figures: Vec<&str> = page.split("<svg").skip(1).collect();
    assert!(figures.len() > RULES.len(), "{}", figures.len());
    for (place, figure) in figures.into_iter().enumerate() {
        check(&format!("figure {place}"), &format!("<svg{figure}"));
    }
    assert!(page.contains("<th scope=\"col\">share denied</th>") && !page.contains("<th>"));
}

#[test]
fn figures_of_the_documentation_are_as_drawn() {
    let page = fs::read_to_string(format!("{DOCS}/choosing-a-limit.md")).unwrap();
    for (name, arguments) in EXAMPLES {
        assert!(plotted(arguments) == committed(name), "draw {name} again");
        assert!(page.contains(&format!("(figures/{name}.svg)")), "{name}");
        let missing = arguments.iter().find(|word| !page.contains(**word));
        assert_eq!(missing, None, "the page has other arguments for {name}");
    }
}
