//! Parses the lines of a file into batches of requests, on a second core if there is one.

use std::fmt;
use std::io::{self, Read};
use std::sync::mpsc::sync_channel;

use foldhash::fast::RandomState;

use super::batch::RequestBatch;
use super::clients::Label;
use super::doubt::{HourWatch, MalformedLines};
use super::key::KeyMaker;
use super::lines::{LogLine, LogLines};
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

/// The most batches that are parsed in advance.
const AHEAD: usize = 4;

/// The state of parsing a file.
pub(super) struct Parsing<'a> {
    pub(super) name: &'a str,
    pub(super) number: u64,
    pub(super) lines: &'a mut LogLines<Box<dyn Read + Send>>,
    pub(super) parser: &'a mut Parser,
    pub(super) keys: &'a mut KeyMaker,
    pub(super) costs: &'a Costs,
    pub(super) texts: &'a [Vec<Field>],
    pub(super) filter: &'a Filter,
    pub(super) hasher: RandomState,
    pub(super) skips: &'a mut Skips,
    pub(super) count: &'a mut u64,
    pub(super) hours: &'a mut HourWatch,
    pub(super) malformed: &'a mut MalformedLines,
}

impl Parsing<'_> {
    /// Does the same as [`Parsing::run`], but parses in a second thread while this one calls
    /// `take`.
    pub(super) fn run_beside(
        mut self,
        mut take: impl FnMut(&mut RequestBatch) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let (full, batches) = sync_channel(AHEAD);
        let (back, empty) = sync_channel(AHEAD + 2);
        std::thread::scope(|scope| {
            let parsed = scope.spawn(move || {
                self.run(&mut |batch: &mut RequestBatch| {
                    let next = empty.try_recv().unwrap_or_default();
                    full.send(std::mem::replace(batch, next))
                        .map_err(|_| ReadError::Ended)
                })
            });
            let taken = batches.into_iter().try_for_each(|mut batch| {
                take(&mut batch)?;
                // The parser has ended if this fails, and then it needs no empty batches.
                let _ = back.try_send(batch);
                Ok(())
            });
            let parsed = parsed
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            taken.and(parsed)
        })
    }

    /// Parses all lines and passes their requests in batches to `deliver`, which must empty each
    /// batch. An empty batch means that the log has no further lines at present.
    pub(super) fn run(
        &mut self,
        deliver: &mut impl FnMut(&mut RequestBatch) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut batch = RequestBatch::default();
        let mut problem = None;
        loop {
            match self.add_line(&mut batch) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !batch.is_empty() {
                        deliver(&mut batch)?;
                    }
                    deliver(&mut batch)?;
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
            if batch.is_full() {
                deliver(&mut batch)?;
            }
        }
        if !batch.is_empty() {
            deliver(&mut batch)?;
        }
        problem.map_or(Ok(()), Err)
    }

    /// Adds the request of the next line to the batch, or counts the reason for skipping the line.
    /// Returns false at the end of the file.
    #[inline]
    fn add_line(&mut self, batch: &mut RequestBatch) -> io::Result<bool> {
        let Some(line) = self.lines.next()? else {
            return Ok(false);
        };
        self.number += 1;
        let (text, record) = match line {
            LogLine::Whole(text) => {
                let text = without_hole(text);
                (text, self.parser.parse(text))
            }
            LogLine::TooLong(text) => (text, Err(Skip::TooLong)),
        };
        let request = record.and_then(|record| match record {
            None => Ok(false),
            Some(record) => {
                let time = record.time();
                if !record.has_zone() {
                    self.hours.see(time, self.number);
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
            Ok(request) => *self.count += u64::from(request),
            Err(skip) => {
                *self.count += 1;
                let blank = text.trim_ascii().is_empty();
                let skip = if blank { Skip::Blank } else { skip };
                if skip.is_malformed() {
                    self.malformed.add(text);
                }
                self.skips.add(skip, self.name, self.number, text);
            }
        }
        Ok(true)
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
