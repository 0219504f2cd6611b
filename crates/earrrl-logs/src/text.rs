//! Formats numbers, errors, tables and markup for people to read.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::time::Duration;

/// Writes `part` of `whole` in percent, with more digits if the share is close to 0 or 100 %.
///
/// ```
/// # use earrrl_logs::text::percent;
/// assert_eq!(percent(1, 4), "25.0 %");
/// ```
pub fn percent(part: u64, whole: u64) -> String {
    let share = part as f64 / whole.max(1) as f64 * 100.0;
    match share {
        _ if part == 0 || part == whole => format!("{share:.0} %"),
        0.1..99.9 => format!("{share:.1} %"),
        _ if share < 0.1 => format!("{share:.4} %"),
        _ => format!("{share:.3} %"),
    }
}

/// Writes a count with its noun, such as `1 client` and `2 clients`.
///
/// ```
/// # use earrrl_logs::text::counted;
/// assert_eq!((counted(1, "client"), counted(2, "client")), ("1 client".into(), "2 clients".into()));
/// ```
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns the shortest unit of time in which the greatest of the rates is at least 0.05: its
/// length in seconds, and its name.
pub(crate) fn per(rates: impl Iterator<Item = f64>) -> (f64, &'static str) {
    let greatest = rates.fold(0.0, f64::max);
    let units = [(1.0, "a second"), (60.0, "a minute"), (3600.0, "an hour")];
    let unit = units
        .into_iter()
        .find(|(seconds, _)| greatest * seconds >= 0.05);
    unit.unwrap_or((86_400.0, "a day"))
}

/// Writes a number with three significant digits, but never fewer than its integer part has.
pub(crate) fn three_digits(number: f64) -> String {
    let decimals = if number <= 0.0 {
        0
    } else {
        (2 - number.log10().floor() as i32).clamp(0, 6)
    };
    let text = format!("{number:.*}", decimals as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Returns the text of a system error without the error number, and with a small first letter.
///
/// ```
/// # use earrrl_logs::text::plain;
/// let error = std::fs::read("/does/not/exist").unwrap_err();
/// assert_eq!(plain(&error), "no such file or directory");
/// ```
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    let (first, rest) = text[..end].split_at_checked(1).unwrap_or_default();
    first.to_lowercase() + rest
}

/// Writes JSON with the characters from U+0080 to U+009F as escapes, since some terminals obey them.
/// JSON itself escapes only those below U+0020.
///
/// ```
/// # use earrrl_logs::text::printable_json;
/// assert_eq!(printable_json("\"a\u{9b}b\"".into()), r#""a\u009bb""#);
/// ```
pub fn printable_json(json: String) -> String {
    let obeyed = '\u{80}'..='\u{9f}';
    if json.is_ascii() || !json.contains(|c| obeyed.contains(&c)) {
        return json;
    }
    json.chars().fold(String::new(), |mut text, c| {
        match obeyed.contains(&c) {
            true => text += &format!("\\u{:04x}", u32::from(c)),
            false => text.push(c),
        }
        text
    })
}

/// Writes rows of columns that are aligned right, except the last, which is aligned left.
///
/// ```
/// use earrrl_logs::text::write_rows;
///
/// let mut text = Vec::new();
/// let rows = [["denied", "client"], ["7", "alice"]];
/// write_rows(&mut text, "", &rows.map(|row| row.map(String::from)))?;
/// assert_eq!(text, b"denied  client\n     7  alice\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_rows<const N: usize>(
    out: &mut impl Write,
    indent: &str,
    rows: &[[String; N]],
) -> io::Result<()> {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    for row in rows {
        let mut line = String::from(indent);
        for (cell, width) in row.iter().zip(widths).take(N - 1) {
            line += &format!("{cell:>width$}  ");
        }
        line += &row[N - 1];
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Returns a text as a CSV field, in quotes if it needs them. A text that begins like a formula is changed,
/// since a spreadsheet would execute it.
pub(crate) fn csv_field(text: &str) -> String {
    let guard = match text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        true => "'",
        false => "",
    };
    if guard.is_empty() && !text.contains([',', '"', '\n', '\r']) {
        return text.to_owned();
    }
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

/// Parses a duration above 0.
///
/// ```
/// use earrrl_logs::text::parse_time;
///
/// assert!(parse_time("90s").is_ok() && parse_time("0s").is_err());
/// ```
///
/// # Errors
/// Returns an error without the name of the field.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    match earrrl::internal::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("expected a time above 0".into()),
        time => time.map_err(|error| error.to_string()),
    }
}

/// A text that is escaped when displayed, since clients can put markup into their names.
///
/// ```
/// use earrrl_logs::text::Html;
/// assert_eq!(Html("<b>".to_owned()).to_string(), "&lt;b&gt;");
/// ```
pub struct Html(pub String);

impl Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c => write!(f, "{c}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_more_digits_at_the_ends() {
        for (part, whole, text) in [
            (0, 0, "0 %"),
            (0, 7, "0 %"),
            (7, 7, "100 %"),
            (1, 3, "33.3 %"),
            (1, 100_000, "0.0010 %"),
            (9_999, 10_000, "99.990 %"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
    }

    #[test]
    fn columns_are_flush() {
        let rows = [["a", "≤", "x"], ["10", "2", "yy"], ["5", "", ""]];
        let mut out = Vec::new();
        write_rows(&mut out, " ", &rows.map(|row| row.map(str::to_owned))).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "  a  ≤  x\n 10  2  yy\n  5\n"
        );
    }

    #[test]
    fn markup_is_text() {
        let text = Html("<img src=x onerror='a'>&\"".into()).to_string();
        assert_eq!(text, "&lt;img src=x onerror=&#39;a&#39;&gt;&amp;&quot;");
    }
}
