//! Statistics of skipped lines: their number by reason, and the first few as examples.

use super::escape::Escaped;

/// The number of lines that are kept as examples of each reason.
const EXAMPLES: usize = 3;

/// The greatest number of bytes of an example that are shown.
const SHOWN: usize = 120;

/// The reason for skipping a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// The line is blank.
    Blank,
    /// The line is longer than the longest line that is parsed.
    TooLong,
    /// The line does not fit the log's format.
    Malformed,
    /// The line has more or fewer columns than the log's header names.
    Columns,
    /// The line has no time where the format requires it, or a time before 1970 or after 2499.
    Time,
    /// The line lacks a field of `--key`.
    Key,
    /// The line lacks the field of `--cost`, or the cost is invalid.
    Cost,
    /// The line reports an event that is not a request.
    NoRequest,
    /// The line reports a request, but contains no client's address.
    NoClient,
    /// The client is neither an address nor a host name.
    Client,
    /// The line continues a longer line before it.
    Continuation,
    /// The line can be read in two ways, which yield different clients.
    Ambiguous,
    /// The time of the line is outside of `--since` and `--until`.
    OtherTime,
    /// The line does not meet `--where`.
    Filtered,
    /// The line has a new client, and the greatest number of clients is reached.
    TooManyClients,
}

impl Skip {
    /// Every reason with its description, in the order of the enumeration.
    const ALL: [(Self, &str); 15] = [
        (Self::Blank, "blank"),
        (Self::TooLong, "longer than 64 KiB"),
        (Self::Malformed, "not a line of this format"),
        (Self::Columns, "with more or fewer columns than the header"),
        (Self::Time, "without a usable time"),
        (Self::Key, "without the key"),
        (Self::Cost, "without a usable cost"),
        (Self::NoRequest, "about no request that counts"),
        (Self::NoClient, "without a client address"),
        (
            Self::Client,
            "whose client is neither an address nor a host name",
        ),
        (Self::Continuation, "that go on with a longer line"),
        (Self::Ambiguous, "whose quotes or fields allow two clients"),
        (Self::OtherTime, "outside of --since and --until"),
        (Self::Filtered, "not asked for by --where"),
        (
            Self::TooManyClients,
            "of clients above the limit on their number",
        ),
    ];

    /// Returns a description of the skipped lines.
    ///
    /// ```
    /// assert_eq!(earrrl_logs::line::Skip::Key.reason(), "without the key");
    /// ```
    pub fn reason(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns true if a line does not look like a line of the format: it does not fit, or has something
    /// else in the place of the time.
    pub(crate) fn is_malformed(self) -> bool {
        matches!(self, Self::Malformed | Self::Columns | Self::Time)
    }
}

/// An example of a skipped line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The file and the line's number: `access.log:17`.
    pub place: String,
    /// The start of the line, with special characters escaped for printing.
    pub text: String,
}

/// The lines that were skipped for one reason: their number, and examples.
#[derive(Debug, Clone, Default)]
struct SkipGroup {
    lines: u64,
    examples: Vec<Example>,
}

/// The statistics of all skipped lines.
///
/// ```
/// use earrrl_logs::line::{Skip, Skips};
///
/// let mut skips = Skips::default();
/// skips.add(Skip::Cost, "access.log", 7, b"a line whose cost is no number");
/// assert_eq!((skips.lines(), skips.lines_of(Skip::Cost)), (1, 1));
/// assert!(skips.by_reason().all(|(skip, lines, _)| skip == Skip::Cost && lines == 1));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Skips {
    groups: [SkipGroup; Skip::ALL.len()],
}

impl Skips {
    /// Counts a skipped line, and keeps it as an example if there are few for this reason.
    #[cold]
    pub fn add(&mut self, skip: Skip, file: &str, number: u64, line: &[u8]) {
        let group = &mut self.groups[skip as usize];
        group.lines += 1;
        let shown = !matches!(skip, Skip::Blank | Skip::OtherTime | Skip::Filtered);
        if group.examples.len() < EXAMPLES && shown {
            let text = Escaped(&line[..line.len().min(SHOWN)]).to_string();
            let more = if line.len() > SHOWN { "…" } else { "" };
            let place = format!("{file}:{number}");
            group.examples.push(Example {
                place,
                text: text + more,
            });
        }
    }

    /// Counts skipped lines without keeping examples.
    pub(crate) fn count(&mut self, skip: Skip, lines: u64) {
        self.groups[skip as usize].lines += lines;
    }

    /// Returns the number of lines that were skipped for a reason.
    pub fn lines_of(&self, skip: Skip) -> u64 {
        self.groups[skip as usize].lines
    }

    /// Returns the number of lines that do not look like lines of the format.
    pub(crate) fn malformed(&self) -> u64 {
        let groups = self.by_reason();
        let of_others = groups.filter(|(skip, ..)| skip.is_malformed());
        of_others.map(|(_, lines, _)| lines).sum()
    }

    /// Returns the number of skipped lines.
    pub fn lines(&self) -> u64 {
        self.groups.iter().map(|group| group.lines).sum()
    }

    /// Returns each reason that occurred, with the number of its lines and the first few as
    /// examples.
    pub fn by_reason(&self) -> impl Iterator<Item = (Skip, u64, &[Example])> {
        let groups = Skip::ALL
            .into_iter()
            .map(|(skip, _)| skip)
            .zip(&self.groups);
        groups
            .filter(|(_, g)| g.lines > 0)
            .map(|(skip, g)| (skip, g.lines, &g.examples[..]))
    }
}
