//! Appends events of clients to a file, one JSON object a line, for tools that read logs.
//!
//! Lines that cannot be written, for example because the disk is full, wait for the next second. New events are found
//! only once none wait, so that those that wait take no more memory than the events of one step.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::ticks::each_second;
use crate::protocol::http::events::json_lines;
use crate::server::Server;
use crate::service::event_source::EventSource;

/// The permissions of a new file, since events have names of clients.
const MODE: u32 = 0o640;

/// Appends the events of all rules to the file, until the server stops.
pub(super) async fn append_forever(server: Arc<Server>, path: PathBuf) {
    let mut source = EventSource::new(&server.service);
    let mut file = EventFile::new(path);
    let mut seconds = each_second();
    loop {
        seconds.tick().await;
        if file.waiting.is_empty() {
            let events = source.step(&server.service, |_| true);
            file.waiting = json_lines(events, server.service.now());
        }
        // A file system may block for long, so another thread writes.
        let written = tokio::task::spawn_blocking(move || {
            let result = file.append();
            (file, result)
        });
        let Ok((back, result)) = written.await else {
            return;
        };
        file = back;
        file.note(result.err());
    }
}

/// The file, and the lines that wait to be written.
struct EventFile {
    path: PathBuf,
    file: Option<File>,
    waiting: String,
    /// The number of bytes of `waiting` that are in the file.
    written: usize,
    /// The length of the file after the last write that left a part of a line in it, otherwise 0.
    length: u64,
    /// True if lines could not be written in the second before.
    has_failed: bool,
}

impl EventFile {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            waiting: String::new(),
            written: 0,
            length: 0,
            has_failed: false,
        }
    }

    /// Appends the lines that wait.
    fn append(&mut self) -> io::Result<()> {
        self.open()?;
        let result = self.write();
        let part = self.file.as_ref().filter(|_| self.written > 0);
        self.length = part
            .and_then(|file| file.metadata().ok())
            .map_or(0, |known| known.len());
        result
    }

    /// Writes the lines that wait. After an error, the file may end with a part of a line.
    fn write(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Err(ErrorKind::NotFound.into());
        };
        while let rest @ [_, ..] = &self.waiting.as_bytes()[self.written..] {
            match file.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        (self.waiting, self.written) = (String::new(), 0);
        Ok(())
    }

    /// Opens the file at the path, unless that is open already. After a rotation it is another one.
    fn open(&mut self) -> io::Result<()> {
        let named = self.path.metadata().ok().map(|named| identity(&named));
        let known = self.file.as_ref().and_then(|file| file.metadata().ok());
        let known_len = known.as_ref().map_or(0, Metadata::len);
        if named.is_none() || named != known.map(|known| identity(&known)) {
            let mut options = OpenOptions::new();
            // A pipe without a reader must be an error, instead of a wait.
            options
                .create(true)
                .append(true)
                .mode(MODE)
                .custom_flags(OFlags::NONBLOCK.bits() as i32);
            self.file = Some(options.open(&self.path)?);
            self.restart_line();
        } else if known_len < self.length {
            self.restart_line();
        }
        Ok(())
    }

    /// Goes back to the start of a line whose beginning is in another file, or was cut off, so that it
    /// is written once more, as a whole.
    fn restart_line(&mut self) {
        let begun = &self.waiting[..self.written];
        self.written = begun.rfind('\n').map_or(0, |end| end + 1);
        self.length = 0;
    }

    /// Logs the first error of several in a row, and the first success after it.
    fn note(&mut self, error: Option<io::Error>) {
        let path = self.path.display();
        let has_failed = error.is_some();
        match error {
            Some(error) if !self.has_failed => {
                tracing::warn!(%error, %path, "events cannot be written; they wait");
            }
            None if self.has_failed => tracing::info!(%path, "events are written again"),
            _ => {}
        }
        self.has_failed = has_failed;
    }
}

/// Returns the numbers that identify a file: its device and its inode.
fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_file_begins_with_a_whole_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        let mut events = EventFile::new(path.clone());
        events.waiting = "first\nsecond\n".into();
        // The disk is full after the half of the second line.
        std::fs::write(&path, "first\nsec").unwrap();
        events.open().unwrap();
        (events.written, events.length) = (9, 9);
        std::fs::write(&path, "").unwrap();
        events.append().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second\n");
        events.waiting = "third\n".into();
        events.append().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second\nthird\n");
    }
}
