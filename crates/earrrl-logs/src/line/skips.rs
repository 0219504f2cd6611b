//! Lines that are no requests: counted by reason, and the first few shown.

use super::escape::Escaped;

/// Examples kept of each reason.
const EXAMPLES: usize = 3;

/// Bytes shown of an example.
const SHOWN: usize = 120;

/// The reason for skipping a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// The line is blank.
    Blank,
    /// Longer than any line that is looked at.
    TooLong,
    /// The line does not fit the format.
    Malformed,
    /// No time where it belongs, or one before 1970 or after 2499.
    Time,
    /// The line lacks a field of `--key`.
    Key,
    /// The line lacks the field of `--cost`, or the cost is invalid.
    Cost,
    /// A line of a daemon's that is about something else.
    NoRequest,
    /// A line of the daemon's that names no client.
    NoClient,
    /// The client is neither an address nor a host name.
    Client,
    /// The rest of a longer line.
    Continuation,
    /// It can be read in two ways, with different clients.
    Ambiguous,
    /// It is outside of `--since` and `--until`.
    OtherTime,
    /// It does not meet `--where`.
    Filtered,
    /// There is no room for one more client.
    TooManyClients,
}

impl Skip {
    const ALL: [Self; 14] = [
        Self::Blank,
        Self::TooLong,
        Self::Malformed,
        Self::Time,
        Self::Key,
        Self::Cost,
        Self::NoRequest,
        Self::NoClient,
        Self::Client,
        Self::Continuation,
        Self::Ambiguous,
        Self::OtherTime,
        Self::Filtered,
        Self::TooManyClients,
    ];

    /// Returns a description of the skipped lines.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Blank => "blank",
            Self::TooLong => "longer than 64 KiB",
            Self::Malformed => "not a line of this format",
            Self::Time => "without a usable time",
            Self::Key => "without the key",
            Self::Cost => "without a usable cost",
            Self::NoRequest => "about no request that counts",
            Self::Client => "whose client is neither an address nor a host name",
            Self::Continuation => "that go on with a longer line",
            Self::Ambiguous => "whose quotes or fields allow two clients",
            Self::OtherTime => "outside of --since and --until",
            Self::Filtered => "not asked for by --where",
            Self::NoClient => "without a client address",
            Self::TooManyClients => "of more clients than there is room for",
        }
    }
}

/// A skipped line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The file and the line's number: `access.log:17`.
    pub place: String,
    /// The start of the line, made printable.
    pub text: String,
}

/// One reason and its lines.
#[derive(Debug, Clone, Default)]
struct SkipGroup {
    lines: u64,
    examples: Vec<Example>,
}

/// All skipped lines.
#[derive(Debug, Clone, Default)]
pub struct Skips {
    groups: [SkipGroup; Skip::ALL.len()],
}

impl Skips {
    /// Counts a line.
    #[cold]
    pub fn add(&mut self, skip: Skip, file: &str, number: u64, line: &[u8]) {
        let group = &mut self.groups[skip as usize];
        group.lines += 1;
        let shown = !matches!(skip, Skip::Blank | Skip::OtherTime | Skip::Filtered);
        if group.examples.len() < EXAMPLES && shown {
            let text = Escaped(&line[..line.len().min(SHOWN)]).to_string();
            let more = if line.len() > SHOWN { "…" } else { "" };
            let place = format!("{file}:{number}");
            group.examples.push(Example { place, text: text + more });
        }
    }

    /// Counts lines that are not shown.
    pub fn count(&mut self, skip: Skip, lines: u64) {
        self.groups[skip as usize].lines += lines;
    }

    /// Returns the number of lines that were skipped for a reason.
    pub fn lines_of(&self, skip: Skip) -> u64 {
        self.groups[skip as usize].lines
    }

    /// Returns the number of skipped lines.
    pub fn lines(&self) -> u64 {
        self.groups.iter().map(|group| group.lines).sum()
    }

    /// Every reason that occurred, its lines and the first few of them.
    pub fn by_reason(&self) -> impl Iterator<Item = (Skip, u64, &[Example])> {
        let groups = Skip::ALL.into_iter().zip(&self.groups);
        groups.filter(|(_, g)| g.lines > 0).map(|(skip, g)| (skip, g.lines, &g.examples[..]))
    }
}
