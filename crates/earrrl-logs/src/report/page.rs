//! The parts that all HTML reports share. A report is a single file without scripts or external
//! resources, and suits small screens and dark mode.

use std::io::{self, Write};

use crate::line::{shell_word, time};
use crate::plot;
use crate::plot::Figure;
use crate::reading::LogReader;
use crate::text::{Html, counted, percent};

const STYLE: &str = include_str!("../../assets/report.css");

/// The size in pixels of figures that are as wide as the page.
pub const WIDE: (u32, u32) = (960, 300);
/// The size in pixels of figures of which two fit side by side.
pub(crate) const HALF: (u32, u32) = (520, 200);

/// The size in pixels of figures that are as wide as a phone.
const NARROW: (u32, u32) = (380, 260);

/// The command that writes a page.
#[derive(Default)]
pub struct Origin {
    /// The words of the command.
    pub command: Vec<String>,
    /// The names of the logs.
    pub files: Vec<String>,
}

impl Origin {
    /// Returns the names of the logs as words of a command.
    pub(super) fn files(&self) -> String {
        words(self.files.iter())
    }

    /// Returns the command without the flags for rules and for the form of the output.
    pub(super) fn without_forms(&self) -> String {
        let mut is_value = false;
        let kept = self.command.iter().filter(|word| {
            let (flag, value) = word
                .split_once('=')
                .map_or((word.as_str(), None), |(flag, value)| (flag, Some(value)));
            let is_left_out =
                is_value || matches!(flag, "--output" | "--plot" | "--rule" | "--anonymize");
            is_value = is_left_out && !is_value && value.is_none() && flag != "--anonymize";
            !is_left_out
        });
        words(kept)
    }
}

fn words<'a>(words: impl Iterator<Item = &'a String>) -> String {
    let words: Vec<String> = words.map(|word| shell_word(word.as_bytes())).collect();
    words.join(" ")
}

/// Returns HTML that shows a time, in nanoseconds since the epoch, in one line.
pub fn when(time: u64) -> String {
    format!("<time>{}</time>", time::written(time))
}

/// Writes the beginning of the page: its head, the counted requests, the time that they span, and the command.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_start(
    out: &mut impl Write,
    reader: &LogReader,
    (requests, (from, to)): (&str, (u64, u64)),
    origin: &Origin,
) -> io::Result<()> {
    let files = Html(origin.files());
    write_head(out, &format!("Who would have been limited: {files}"))?;
    write!(
        out,
        "<h2>What happened</h2>\n<p>{requests}, {} to {} UTC.</p>\n\
         <p class=\"faint\"><code>{}</code>, EARRRL {}. All times are in UTC.<br>{} read, {} used, {} skipped{}.</p>\n",
        when(from),
        when(to),
        Html(words(origin.command.iter())),
        env!("CARGO_PKG_VERSION"),
        counted(reader.lines, "line"),
        reader.used(),
        reader.skips.lines(),
        reasons(reader),
    )
}

/// Writes the head of a page and its title as a heading.
pub(crate) fn write_head(out: &mut impl Write, title: &str) -> io::Result<()> {
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style></head><body>\n<h1>{title}</h1>"
    )
}

/// Writes the end of the page.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_end(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "</body></html>")
}

/// Returns a sentence with the reasons for skipped lines, or nothing if no line was skipped.
fn reasons(reader: &LogReader) -> String {
    let reasons = reader
        .skips
        .by_reason()
        .map(|(skip, lines, _)| format!("{lines} {}", skip.reason()));
    let reasons: Vec<String> = reasons.collect();
    if reasons.is_empty() {
        String::new()
    } else {
        format!(": {}", reasons.join(", "))
    }
}

/// Writes an HTML table, whose first column is aligned left.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_table(
    out: &mut impl Write,
    header: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) -> io::Result<()> {
    let header: String = header
        .iter()
        .map(|cell| format!("<th scope=\"col\">{cell}</th>"))
        .collect();
    writeln!(
        out,
        "<div class=\"scroll\"><table><thead><tr>{header}</tr></thead><tbody>"
    )?;
    for cells in rows {
        let cells: String = cells
            .iter()
            .map(|cell| format!("<td>{cell}</td>"))
            .collect();
        writeln!(out, "<tr>{cells}</tr>")?;
    }
    writeln!(out, "</tbody></table></div>")
}

/// Returns HTML that shows `part` of `whole` in percent, with a bar beside it.
///
/// ```
/// assert!(earrrl_logs::report::page::share(1, 4).contains("25.0 %"));
/// ```
pub fn share(part: u64, whole: u64) -> String {
    let width = part as f64 / whole.max(1) as f64 * 100.0;
    let percent = percent(part, whole);
    format!("<span class=\"share\"><i style=\"width:{width:.1}%\"></i></span>{percent}")
}

/// Writes a figure into the page as SVG. On small screens a wide figure scrolls, so that its texts
/// remain legible.
pub(crate) fn write_figure(out: &mut impl Write, figure: &Figure) -> io::Result<()> {
    let class = if figure.size.0 > HALF.0 {
        "scroll wide"
    } else {
        "scroll"
    };
    writeln!(out, "<div class=\"{class}\">{}</div>", plot::svg(figure))
}

/// Writes a figure in a size for wide pages, and in one for phones, so that its texts remain legible.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_for_all(
    out: &mut impl Write,
    size: (u32, u32),
    figure: impl Fn((u32, u32)) -> Figure,
) -> io::Result<()> {
    for (class, size) in [("page", size), ("phone", NARROW)] {
        let svg = plot::svg(&figure(size));
        writeln!(out, "<div class=\"{class}\">{svg}</div>")?;
    }
    Ok(())
}
