//! Parses the lines of a file into batches of requests, on two cores.
//!
//! ```text
//!           chunks    ┌─ LineParser, other thread ─┐  requests
//! LogLines ──────────>│                            │───────────> clients, and who takes the requests
//!                     └─ LineParser, this thread ──┘
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

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

/// The most portions that the other thread has. It must not run out of them while this thread parses one itself and
/// takes the requests of several: with 3 it waited for a third of the time.
const AWAY: usize = 6;

/// The most portions whose requests were not taken yet.
const AHEAD: usize = 10;

/// The parsing of a file: another thread parses its lines, a chunk at a time. This one reads the lines, takes the requests
/// and parses as well.
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

/// The thread that parses lines, the parser of the thread that reads them, and the portions of lines whose requests
/// were not taken yet.
struct Parsers<'a> {
    given: SyncSender<Portion>,
    parsed: Receiver<Portion>,
    /// The parser of this thread; `None` if lines depend on lines before them.
    own: Option<LineParser<'a>>,
    /// The portions in the order of their lines; `None` for those that the other thread has.
    ahead: VecDeque<Option<Portion>>,
    /// The number of portions that the other thread has.
    away: usize,
}

impl Parsing<'_> {
    /// Parses all lines and passes their requests in batches to `take`, in the order of the lines. An empty batch means
    /// that the log has no further lines at present. `own` parses in this thread whenever the other has enough to do.
    pub(super) fn run(
        mut self,
        mut parser: LineParser<'_>,
        own: Option<LineParser<'_>>,
        mut take: impl FnMut(&RequestBatch) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        std::thread::scope(|scope| {
            let (given, portions) = sync_channel::<Portion>(AWAY);
            let (done, parsed) = sync_channel(AWAY);
            scope.spawn(move || {
                for mut portion in portions {
                    parser.parse(&mut portion);
                    // This fails once nobody takes the requests any more.
                    let _ = done.send(portion);
                }
            });
            let parsers = Parsers {
                given,
                parsed,
                own,
                ahead: VecDeque::new(),
                away: 0,
            };
            self.read(parsers, &mut take)
        })
    }

    fn read(
        &mut self,
        mut parsers: Parsers<'_>,
        take: &mut impl FnMut(&RequestBatch) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut problem = None;
        let mut portion = Portion::default();
        loop {
            let more = self.lines.next_chunk(&mut portion.lines);
            if matches!(more, Ok(true)) {
                parsers.give(portion)?;
                portion = parsers.first(parsers.are_busy())?.unwrap_or_default();
                self.add(&mut portion, take)?;
                continue;
            }
            while let Some(mut first) = parsers.first(true)? {
                self.add(&mut first, take)?;
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
            let text = text_of(&portion.lines.line(&place));
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

impl Parsers<'_> {
    /// Gives a portion to the other thread, or parses it if that has enough to do.
    fn give(&mut self, mut portion: Portion) -> Result<(), ReadError> {
        if let Some(parser) = self.own.as_mut().filter(|_| self.away == AWAY) {
            parser.parse(&mut portion);
            self.ahead.push_back(Some(portion));
            return Ok(());
        }
        self.away += 1;
        self.ahead.push_back(None);
        // The thread ends early only if it panics.
        self.given.send(portion).map_err(|_| ReadError::Ended)
    }

    /// Returns true if enough portions are read ahead: the first is then waited for.
    fn are_busy(&self) -> bool {
        let most = if self.own.is_some() { AHEAD } else { AWAY };
        self.ahead.len() == most
    }

    /// Returns the first portion once it is parsed, for which this waits if `waits` is true; `None` if there is none.
    fn first(&mut self, waits: bool) -> Result<Option<Portion>, ReadError> {
        let portion = match self.ahead.pop_front() {
            Some(None) => match waits {
                true => self.parsed.recv().map_err(|_| TryRecvError::Disconnected),
                false => self.parsed.try_recv(),
            },
            parsed => return Ok(parsed.flatten()),
        };
        match portion {
            Ok(portion) => {
                self.away -= 1;
                Ok(Some(portion))
            }
            Err(TryRecvError::Empty) => {
                self.ahead.push_front(None);
                Ok(None)
            }
            Err(TryRecvError::Disconnected) => Err(ReadError::Ended),
        }
    }
}

impl LineParser<'_> {
    /// Parses the lines of a portion.
    fn parse(&mut self, portion: &mut Portion) {
        let Portion { lines, batch, .. } = portion;
        for place in lines.places() {
            portion.number += 1;
            let line = lines.line(&place);
            let text = text_of(&line);
            let record = match line {
                LogLine::Whole(_) => self.parser.parse(text),
                LogLine::TooLong(_) => Err(Skip::TooLong),
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
#[inline]
fn text_of<'a>(line: &LogLine<'a>) -> &'a [u8] {
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
