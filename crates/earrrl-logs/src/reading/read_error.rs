//! The error of reading a log.

use std::fmt;
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
