//! Parses the lines of a file into batches of requests, on all cores.
//!
//! ```text
//!            lines     ┌─ LineParser ─┐  requests
//! LogLines ───────────>│              │───────────> clients, and who takes the requests
//!          by turns    └─ LineParser ─┘   by turns
//! ```

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use foldhash::fast::RandomState;

use super::batch::RequestBatch;
use super::clients::Label;
use super::doubt::{HourWatch, MalformedLines};
use super::key::KeyMaker;
use super::lines::{LineChunk, LogLine, LogLines};
use super::select::{Costs, Filter};
use crate::format::{Field, Parser};
use crate::line::{Skip, Skips};
use crate::text::plain;

/// The reason for which reading a file ended early.
#[derive(Debug)]
pub enum ReadError {
    /// The file cannot be opened, or not read to its end. Other files are still read.
    Input(String),
    /// The consumer of the requests failed with this error.
    Output(io::Error),
    /// The consumer of the requests stopped, and reports the reason itself.
    Ended,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(problem) => f.write_str(problem),
            Self::Output(error) => error.fmt(f),
            Self::Ended => f.write_str("the consumer of the requests stopped"),
        }
    }
}

impl std::error::Error for ReadError {}

/// The number of chunks that wait for each thread, or for this one behind it.
const AHEAD: usize = 2;

/// The parsing of a file: this thread reads its lines and takes its requests; others parse, a chunk of lines each.
pub(super) struct Parsing<'a> {
    pub(super) name: &'a str,
    pub(super) number: u64,
    pub(super) lines: &'a mut LogLines<Box<dyn Read + Send>>,
    pub(super) skips: &'a mut Skips,
    pub(super) count: &'a mut u64,
    pub(super) hours: &'a mut HourWatch,
    pub(super) malformed: &'a mut MalformedLines,
}

/// Makes requests of lines.
pub(super) struct LineParser<'a> {
    pub(super) parser: &'a mut Parser,
    pub(super) keys: KeyMaker,
    pub(super) costs: &'a Costs,
    pub(super) texts: &'a [Vec<Field>],
    pub(super) filter: &'a Filter,
    pub(super) hasher: RandomState,
}

/// Lines that are parsed together, and what they contain.
#[derive(Default)]
struct Portion {
    lines: LineChunk,
    batch: RequestBatch,
    /// The number of lines.
    number: u64,
    /// The number of lines that are no headers.
    count: u64,
    /// The lines that were skipped, by their numbers from 1 on, with their places.
    skipped: Vec<(u64, Skip, Range<usize>)>,
    /// The times without a zone, by the numbers of their lines.
    local: Vec<(u64, u64)>,
}

/// A thread that parses lines, in the order in which it is given them.
struct ParserThread {
    given: SyncSender<Portion>,
    parsed: Receiver<Portion>,
}

/// The threads that parse a file, of which each has its turn.
struct ParserThreads {
    all: Vec<ParserThread>,
    turn: usize,
    /// The number of portions that were given to threads and not taken back.
    ahead: usize,
}

impl Parsing<'_> {
    /// Parses all lines and passes their requests in batches to `take`, in the order of the lines. An empty batch means
    /// that the log has no further lines at present. Each parser has a thread of its own; several must not depend on the
    /// lines that others parse.
    pub(super) fn run(
        mut self,
        parsers: Vec<LineParser<'_>>,
        mut take: impl FnMut(&RequestBatch) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        std::thread::scope(|scope| {
            let mut threads = ParserThreads {
                all: Vec::new(),
                turn: 0,
                ahead: 0,
            };
            for mut parser in parsers {
                let (given, portions) = sync_channel::<Portion>(AHEAD);
                let (done, parsed) = sync_channel(AHEAD);
                scope.spawn(move || {
                    for mut portion in portions {
                        parser.parse(&mut portion);
                        // This fails once nobody takes the requests any more.
                        let _ = done.send(portion);
                    }
                });
                threads.all.push(ParserThread { given, parsed });
            }
            self.read(&mut threads, &mut take)
        })
    }

    fn read(
        &mut self,
        threads: &mut ParserThreads,
        take: &mut impl FnMut(&RequestBatch) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut problem = None;
        let mut portion = Portion::default();
        loop {
            let more = self.lines.next_chunk(&mut portion.lines);
            if matches!(more, Ok(true)) {
                portion = threads.exchange(portion)?;
                self.add(&mut portion, take)?;
                continue;
            }
            while threads.ahead > 0 {
                self.add(&mut threads.oldest()?, take)?;
            }
            match more {
                Ok(_) => return problem.map_or(Ok(()), Err),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    take(&RequestBatch::default())?;
                }
                Err(error) => {
                    problem = Some(ReadError::Input(format!(
                        "{}: {} behind line {}; what came before it is used",
                        self.name,
                        plain(&error),
                        self.number
                    )));
                }
            }
        }
    }

    /// Counts the lines of a portion and takes its requests, and empties it.
    fn add(
        &mut self,
        portion: &mut Portion,
        take: &mut impl FnMut(&RequestBatch) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        for (line, time) in portion.local.drain(..) {
            self.hours.see(time, self.number + line);
        }
        for (line, skip, place) in portion.skipped.drain(..) {
            let text = text_of(portion.lines.line(place));
            if skip.is_malformed() {
                self.malformed.add(text);
            }
            self.skips.add(skip, self.name, self.number + line, text);
        }
        self.number += std::mem::take(&mut portion.number);
        *self.count += std::mem::take(&mut portion.count);
        if !portion.batch.is_empty() {
            take(&portion.batch)?;
            portion.batch.clear();
        }
        Ok(())
    }
}

impl ParserThreads {
    /// Gives a portion to the thread that has its turn. Returns an empty one at first, and then the oldest, parsed.
    fn exchange(&mut self, portion: Portion) -> Result<Portion, ReadError> {
        let is_full = self.ahead == AHEAD * self.all.len();
        let oldest = match is_full {
            true => self.oldest()?,
            false => Portion::default(),
        };
        let given = self.all[self.turn].given.send(portion);
        self.turn = (self.turn + 1) % self.all.len();
        self.ahead += 1;
        // A thread ends early only if it panics.
        given.map_or(Err(ReadError::Ended), |()| Ok(oldest))
    }

    /// Waits for the portion that was given first.
    fn oldest(&mut self) -> Result<Portion, ReadError> {
        let threads = self.all.len();
        let first = (self.turn + AHEAD * threads - self.ahead) % threads;
        self.ahead -= 1;
        self.all[first].parsed.recv().map_err(|_| ReadError::Ended)
    }
}

impl LineParser<'_> {
    /// Parses the lines of a portion.
    fn parse(&mut self, portion: &mut Portion) {
        let Portion { lines, batch, .. } = portion;
        for place in lines.places() {
            portion.number += 1;
            let line = lines.line(place.clone());
            let is_whole = matches!(line, LogLine::Whole(_));
            let text = text_of(line);
            let record = match is_whole {
                true => self.parser.parse(text),
                false => Err(Skip::TooLong),
            };
            let request = record.and_then(|record| match record {
                None => Ok(false),
                Some(record) => {
                    let time = record.time();
                    if !record.has_zone() {
                        portion.local.push((portion.number, time));
                    }
                    self.filter.check(&record)?;
                    let cost = self.costs.of(&record)?;
                    let hasher = &self.hasher;
                    let push = |key: &[u8]| {
                        batch.push(key, Label::new(key, hasher), time, cost);
                    };
                    self.keys.with(&record, push)?;
                    if !self.texts.is_empty() {
                        batch.add_texts(&record, self.texts);
                    }
                    Ok(true)
                }
            });
            match request {
                Ok(request) => portion.count += u64::from(request),
                Err(skip) => {
                    portion.count += 1;
                    let blank = text.trim_ascii().is_empty();
                    let skip = if blank { Skip::Blank } else { skip };
                    portion.skipped.push((portion.number, skip, place));
                }
            }
        }
    }
}

/// Returns the text of a line, or of the part of it that is known.
fn text_of(line: LogLine<'_>) -> &[u8] {
    match line {
        LogLine::Whole(text) => without_hole(text),
        LogLine::TooLong(text) => text,
    }
}

/// Removes leading zero bytes. They come from a log that was truncated while its writer kept its
/// position: the file then continues after a hole that reads as zeros.
#[inline]
fn without_hole(line: &[u8]) -> &[u8] {
    if line.first() != Some(&0) {
        return line;
    }
    let start = line.iter().position(|&b| b != 0).unwrap_or(line.len());
    &line[start..]
}
