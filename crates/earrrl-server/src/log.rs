//! The server's log: lines to standard error, written without blocking the threads that log.
//!
//! One thread writes all lines, to an output without a buffer. Lines that cannot be written (a
//! closed pipe, a pipe that nobody reads, a full disk) are dropped and counted; the server
//! continues.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tracing_subscriber::fmt::MakeWriter;

/// The largest number of lines that may wait to be written.
const WAITING: usize = 4096;
/// The length of the longest line, in bytes; longer lines are cut.
const MAX_LINE_LEN: usize = 16 * 1024;

/// The number of lines that could not be written. It is global, since a process has one log.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of lines that could not be written.
pub fn lines_lost() -> u64 {
    LOST.load(Relaxed)
}

/// Lets one of many equal warnings through in each period, since requests cause them.
#[derive(Debug, Default)]
pub struct Seldom(AtomicU64);

impl Seldom {
    /// Creates the gate of a kind of warning of which none was logged.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns true if no warning was logged in the last `period` seconds, which are counted by the system's clock.
    pub fn is_due(&self, period: u64) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.is_due_at(now.unwrap_or_default().as_secs(), period)
    }

    /// Returns true if no warning was logged in the last `period` seconds before `now`. The second 0 stands for
    /// no warning at all. A clock that was set back delays the next warning.
    pub fn is_due_at(&self, now: u64, period: u64) -> bool {
        let before = self.0.load(Relaxed);
        let is_due = before == 0 || now.saturating_sub(before) >= period;
        // Of several threads that come at once, one succeeds.
        is_due
            && self
                .0
                .compare_exchange(before, now.max(1), Relaxed, Relaxed)
                .is_ok()
    }
}

/// The log's input, which passes lines to the thread that writes them.
#[derive(Clone, Debug)]
pub struct Log {
    lines: SyncSender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
}

impl Log {
    /// Starts the thread that writes lines to `output`.
    ///
    /// # Errors
    /// Returns the system's error if the thread cannot be started.
    pub fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, receiver) = sync_channel(WAITING);
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_all(&receiver, &left, output))?;
        Ok(Self { lines, waiting })
    }

    /// Waits until all lines are written, for at most `patience`.
    pub fn finish(&self, patience: Duration) {
        let started = Instant::now();
        while self.waiting.load(Relaxed) > 0 && started.elapsed() < patience {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn write_all(lines: &Receiver<Vec<u8>>, waiting: &AtomicUsize, mut output: impl Write) {
    // True if the last line was written only in part. A line end is then written first, so that the
    // next line does not seem to be the rest of it.
    let mut torn = false;
    for mut line in lines {
        if torn {
            line.insert(0, b'\n');
        }
        let left = write_line(&mut output, &line);
        LOST.fetch_add(u64::from(left > 0), Relaxed);
        torn = left > 0 && (torn || left < line.len());
        waiting.fetch_sub(1, Relaxed);
    }
}

/// Writes a line, and returns the number of its bytes that could not be written.
fn write_line(output: &mut impl Write, mut line: &[u8]) -> usize {
    loop {
        match output.write(line) {
            Ok(written @ 1..) => line = &line[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return line.len(),
        }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Log {
    /// Queues one line. It returns no error, since the subscriber would print the error to standard
    /// error, and panic if that fails too.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.waiting.fetch_add(1, Relaxed);
        let kept = &line[..line.len().min(MAX_LINE_LEN)];
        if self.lines.try_send(kept.to_vec()).is_err() {
            self.waiting.fetch_sub(1, Relaxed);
            LOST.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// An output that blocks until the test lets it continue, and then fails.
    struct Blocked(Receiver<()>, Sender<()>);

    impl Write for Blocked {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            let _ = self.1.send(());
            let _ = self.0.recv();
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_hold_up_nobody() {
        let (go_on, held) = channel();
        let (at_it, begun) = channel();
        let log = Log::start(Blocked(held, at_it)).unwrap();
        let before = lines_lost();
        (&log).write_all(b"one\n").unwrap();
        begun.recv().unwrap();
        for _ in 0..WAITING + 10 {
            (&log).write_all(b"more\n").unwrap();
        }
        assert_eq!(lines_lost() - before, 10);
        drop(go_on);
        while log.waiting.load(Relaxed) > 0 {
            thread::yield_now();
        }
        assert_eq!(lines_lost() - before, 10 + 1 + WAITING as u64);
    }
}
