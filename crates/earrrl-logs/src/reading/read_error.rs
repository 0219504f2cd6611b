//! The error of reading a log.

use std::io;

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
