//! A progress bar, which is shown on terminals only.

use std::io::{IsTerminal as _, Read};
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar that counts the bytes of the files as they are stored, compressed or not.
pub(crate) struct ReadProgress(ProgressBar);

impl ReadProgress {
    /// Creates a bar for files. It only counts bytes if the total length is unknown, as that of
    /// standard input is.
    pub(crate) fn of(files: &[PathBuf]) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let length = |path: &PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
        let length = files.iter().map(length).sum();
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
        let style = match length {
            0 => "{bytes} read, {bytes_per_sec}",
            _ => "{bar:24} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        };
        Self(bar.with_style(
            ProgressStyle::with_template(style).unwrap_or(ProgressStyle::default_bar()),
        ))
    }

    /// Counts the bytes that are read from `source`.
    pub(crate) fn watch(&self, source: Box<dyn Read + Send>) -> Box<dyn Read + Send> {
        if self.0.is_hidden() {
            source
        } else {
            Box::new(self.0.wrap_read(source))
        }
    }

    /// Hides the bar while `print` runs.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }

    /// Removes the bar from the screen.
    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
