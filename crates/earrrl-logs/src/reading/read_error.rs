//! What ends the reading of a file.

use std::io;

/// What ended the reading of a file.
#[derive(Debug)]
pub enum ReadError {
    /// The file cannot be read, or not to its end; other files are still read.
    Input(String),
    /// What takes the requests can't go on.
    Output(io::Error),
    /// Nobody takes what is parsed, for a reason that is told elsewhere.
    Ended,
}
