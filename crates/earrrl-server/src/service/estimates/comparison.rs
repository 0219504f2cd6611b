//! Compares learned estimates with a fixed one and with none, for the table and the figure in the
//! documentation.

use std::time::Duration;

use super::tests::{estimator, request};
use super::*;

/// The estimate of a request before its work.
#[derive(Clone, Copy, Debug)]
enum Method {
    /// A check before the work and a charge after it.
    Nothing,
    Fixed(f64),
    Learned,
}

/// The tokens that a client may use in each window of a minute.
const LIMIT: f64 = 400_000.0;
const WINDOWS: u64 = 200;
const WINDOW_MILLIS: u64 = 60_000;
/// The milliseconds between two requests; about half of them can pass.
const BETWEEN: u64 = 100;
/// The milliseconds in which a token is made.
const A_TOKEN: f64 = 10.0;

#[derive(Debug)]
struct Stream<'a> {
    end: u64,
    learned: Option<Estimate<'a>>,
    estimate: f64,
    actual: f64,
}

fn instant(millis: u64) -> Nanos {
    Nanos::ZERO + Duration::from_millis(millis)
}

impl<'a> Stream<'a> {
    fn estimated(method: Method, estimator: &'a Estimator, at: u64, state: &mut u64) -> Self {
        let (model, actual) = request(state);
        let (learned, estimate) = match method {
            Method::Nothing => (None, 0.0),
            Method::Fixed(estimate) => (None, estimate),
            Method::Learned => {
                let (learned, cost) = estimator.estimate(model.as_bytes(), None, None, instant(at));
                (Some(learned), cost.as_f64())
            }
        };
        Self {
            end: at + (A_TOKEN * actual) as u64,
            learned,
            estimate,
            actual,
        }
    }

    fn commit(&self, at: u64) {
        if let Some(Estimate {
            estimator,
            label,
            learned,
        }) = &self.learned
        {
            estimator.learn(*label, *learned, self.actual, instant(at));
        }
    }
}

/// Returns the tokens of the admitted requests, and the number of denials of requests whose actual
/// cost would have been within the limit. Streams that outlast the window end with it.
fn window(method: Method, estimator: &Estimator, start: u64, state: &mut u64) -> (f64, u64) {
    let mut admitted = 0.0;
    let mut charged = 0.0;
    let mut false_denials = 0;
    let mut streams: Vec<Stream<'_>> = Vec::new();
    for at in (start..start + WINDOW_MILLIS).step_by(BETWEEN as usize) {
        for ended in streams.extract_if(.., |stream| stream.end <= at) {
            charged += ended.actual - ended.estimate;
            ended.commit(at);
        }
        let stream = Stream::estimated(method, estimator, at, state);
        if charged + stream.estimate.max(1.0) <= LIMIT {
            admitted += stream.actual;
            charged += stream.estimate;
            streams.push(stream);
        } else {
            false_denials += u64::from(admitted + stream.actual <= LIMIT);
        }
    }
    streams
        .iter()
        .for_each(|stream| stream.commit(start + WINDOW_MILLIS));
    (admitted, false_denials)
}

/// The result of a method, in thousandths: of the limit, and of all requests.
struct Row {
    name: &'static str,
    over: u32,
    used: u32,
    denials: u32,
}

fn row(name: &'static str, method: Method, quantile: f64) -> Row {
    let estimator = estimator(quantile);
    let mut state = 1;
    let mut over = 0.0;
    let mut used = 0.0;
    let mut denials = 0;
    for nth in 0..WINDOWS {
        let (admitted, denied) = window(method, &estimator, nth * WINDOW_MILLIS, &mut state);
        over += f64::max(admitted - LIMIT, 0.0);
        used += f64::min(admitted, LIMIT);
        denials += denied;
    }
    let of_limit = |tokens: f64| (tokens / (WINDOWS as f64 * LIMIT) * 1000.0).round() as u32;
    let requests = (WINDOWS * WINDOW_MILLIS / BETWEEN) as f64;
    let denials = (denials as f64 / requests * 1000.0).round() as u32;
    Row {
        name,
        over: of_limit(over),
        used: of_limit(used),
        denials,
    }
}

fn percent(thousandths: u32) -> String {
    format!("{}.{} %", thousandths / 10, thousandths % 10)
}

/// Returns the figure of the documentation: two bars for each method.
fn figure(rows: &[Row]) -> String {
    let series = [
        ("tokens above the limit", "#D55E00"),
        ("false denials", "#0072B2"),
    ];
    let mut svg = String::from(HEAD);
    for (nth, (name, color)) in series.into_iter().enumerate() {
        let x = 250 + 200 * nth;
        svg += &format!("<rect x=\"{x}\" y=\"12\" width=\"14\" height=\"14\" fill=\"{color}\"/>\n");
        svg += &format!("<text x=\"{}\" y=\"24\">{name}</text>\n", x + 22);
    }
    for (nth, row) in rows.iter().enumerate() {
        let top = 44 + 52 * nth;
        let name = row.name.replace('`', "");
        svg += &format!(
            "<text x=\"240\" y=\"{}\" text-anchor=\"end\">{name}</text>\n",
            top + 25
        );
        for (y, value, (_, color)) in [
            (top, row.over, series[0]),
            (top + 20, row.denials, series[1]),
        ] {
            let width = value * 3 / 10;
            let bar = format!("x=\"250\" y=\"{y}\" width=\"{width}\" height=\"18\"");
            svg += &format!("<rect {bar} fill=\"{color}\"/>\n");
            let text = format!("x=\"{}\" y=\"{}\"", width + 256, y + 14);
            svg += &format!("<text {text}>{}</text>\n", percent(value));
        }
    }
    svg + "</svg>\n"
}

const HEAD: &str = "<svg role=\"img\" width=\"640\" height=\"310\" viewBox=\"0 0 640 310\" \
    font-family=\"sans-serif\" font-size=\"14\" xmlns=\"http://www.w3.org/2000/svg\">
<style>@media (prefers-color-scheme: dark) { [fill='#FFFFFF'] { fill: #0d1117 } \
    text { fill: #e6edf3 } [fill='#0072B2'] { fill: #56b4e9 } }</style>
<title>Estimates compared</title>
<desc>Tokens above the limit, as a share of the limit, and denials of requests that would have \
    fitted, as a share of all requests, by the estimate.</desc>
<rect width=\"640\" height=\"310\" fill=\"#FFFFFF\"/>
";

#[test]
fn the_documented_comparison_is_measured() {
    let page = include_str!("../../../../../docs/llm.md");
    let rows = [
        row("none: check before, charge after", Method::Nothing, 0.95),
        row("1024 for every request", Method::Fixed(1024.0), 0.95),
        row("learned, `quantile = 0.5`", Method::Learned, 0.5),
        row("learned, `quantile = 0.8`", Method::Learned, 0.8),
        row("learned, `quantile = 0.95`", Method::Learned, 0.95),
    ];
    for Row {
        name,
        over,
        used,
        denials,
    } in &rows
    {
        let [over, used, denials] = [*over, *used, *denials].map(percent);
        let row = format!("| {name} | {over} | {used} | {denials} |");
        assert!(page.contains(&row), "{row}");
    }
    let svg = figure(&rows);
    assert!(
        svg == include_str!("../../../../../docs/figures/estimates.svg"),
        "{svg}"
    );
}
