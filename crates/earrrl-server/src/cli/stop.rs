//! Handles Ctrl-C while a log is read: the reading ends, and the lines read so far are reported.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use super::CliFailure;

/// The exit status of a process that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// A flag that Ctrl-C sets.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Arc<AtomicBool>);

/// A source that fails once the flag is set. An end would make a line that is cut here look whole.
struct Stoppable {
    source: Box<dyn Read + Send>,
    stop: Stop,
}

impl Stop {
    /// Creates a flag that the first Ctrl-C sets; the second ends the process.
    ///
    /// # Errors
    /// Returns an error if the system does not allow the signal to be caught.
    pub(crate) fn on_interrupt() -> Result<Self, CliFailure> {
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
    pub(crate) fn watch(&self, source: Box<dyn Read + Send>) -> Box<dyn Read + Send> {
        Box::new(Stoppable {
            source,
            stop: self.clone(),
        })
    }

    /// Returns true if Ctrl-C was pressed.
    pub(crate) fn is_set(&self) -> bool {
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
