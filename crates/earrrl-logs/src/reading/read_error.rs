//! The reasons for which the reading of a file ends early.

use std::io;

/// The reason for which the reading of a file ended early.
#[derive(Debug)]
pub enum ReadError {
    /// The file cannot be read, or not to its end; other files are still read.
    Input(String),
    /// The consumer of the requests failed.
    Output(io::Error),
    /// The consumer has stopped, and reports the reason itself.
    Ended,
}
