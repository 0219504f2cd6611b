//! The watch over a log that is read: a progress bar, on terminals only; and Ctrl-C, upon which the reading ends and
//! the lines read so far are reported.

use std::io::{self, IsTerminal as _, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use super::CliFailure;

/// The source of a log's bytes.
type Source = Box<dyn Read + Send>;

/// The progress bar and Ctrl-C while logs are read.
pub(super) struct LogWatch {
    /// A bar that counts the bytes of the files as they are stored, compressed or not.
    pub(super) bar: ProgressBar,
    pub(super) stop: Stop,
}

impl LogWatch {
    /// Begins the reading of files. The bar only counts bytes if the total length is unknown, as that of standard input
    /// is.
    ///
    /// # Errors
    /// Returns the error of [`Stop::on_interrupt`].
    pub(super) fn begin(files: &[PathBuf]) -> Result<Self, CliFailure> {
        let stop = Stop::on_interrupt()?;
        let length = |path: &PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
        let (target, length) = match io::stderr().is_terminal() {
            true => (ProgressDrawTarget::stderr(), files.iter().map(length).sum()),
            false => (ProgressDrawTarget::hidden(), 0),
        };
        let style = match length {
            0 => "{bytes} read, {bytes_per_sec}",
            _ => "{bar:24} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        };
        let style = ProgressStyle::with_template(style).unwrap_or(ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(Some(length), target).with_style(style);
        Ok(Self { bar, stop })
    }

    /// Counts the bytes that are read from `source`, which fails once Ctrl-C was pressed.
    pub(super) fn counted(&self, source: Source) -> Source {
        match self.bar.is_hidden() {
            true => self.stop.watch(source),
            false => self.stop.watch(Box::new(self.bar.wrap_read(source))),
        }
    }
}

/// The exit status of a process that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// A flag that Ctrl-C sets.
#[derive(Debug, Clone)]
pub(super) struct Stop(Arc<AtomicBool>);

/// A source that fails once the flag is set. An end would make a line that is cut here look whole.
struct Stoppable {
    source: Source,
    stop: Stop,
}

impl Stop {
    /// Creates a flag that the first Ctrl-C sets; the second ends the process.
    ///
    /// # Errors
    /// Returns an error if the system does not allow the signal to be caught.
    pub(super) fn on_interrupt() -> Result<Self, CliFailure> {
        let failed = |error: io::Error| CliFailure::new(format!("can't catch Ctrl-C: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        let runtime = runtime.map_err(failed)?;
        let guard = runtime.enter();
        let mut interrupts = signal(SignalKind::interrupt()).map_err(failed)?;
        drop(guard);
        let stop = Self(Arc::default());
        let flag = Arc::clone(&stop.0);
        std::thread::spawn(move || {
            runtime.block_on(interrupts.recv());
            flag.store(true, Ordering::Relaxed);
            runtime.block_on(interrupts.recv());
            std::process::exit(INTERRUPTED);
        });
        Ok(stop)
    }

    /// Wraps a source so that it fails once the flag is set.
    pub(super) fn watch(&self, source: Source) -> Source {
        Box::new(Stoppable {
            source,
            stop: self.clone(),
        })
    }

    /// Returns true if Ctrl-C was pressed.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Read for Stoppable {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.stop.is_set() {
            true => Err(io::Error::other("interrupted")),
            false => self.source.read(out),
        }
    }
}
